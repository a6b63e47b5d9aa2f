"""Streams: the batches of one epoch as compiled calls take them, read on the host or held on the devices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from mirrorkit.data import Resident
from mirrorkit.data.rows import HOST
from mirrorkit.train.step.share import Share, bounds, own_share, this_replica

Sizes = tuple[int | None, ...]  # of the batches of one update; None where a size is not known before it runs


class Stream:
    """Where an epoch's batches come from, and how far it is.

    Args:
        source: what a compiled call is given to take its batches from: a nest of tensors, or an iterator.
        steps: how many batches there are; None where nobody knows.
        size: examples in a batch, when it is known and all replicas get the same number of them.
        whole: how many batches have that size; the rest are smaller.
        position: batches that are done already.
    """

    kind: Any = "host"  # streams of one kind share their compiled functions
    on_device = False

    def __init__(self, source: Any, *, steps: int | None, size: int | None, whole: int, position: int = 0) -> None:
        self.source = source
        self.steps = steps
        self.position = position
        self.size = size
        self._whole = whole

    @property
    def element_spec(self) -> Any:
        """Shapes and dtypes of what the batches are taken from."""
        return self.source.element_spec

    @property
    def devices(self) -> Any:
        """Where the parts of `source` lie: the same nest, of the names of devices."""
        return HOST

    @property
    def left(self) -> int | None:
        """How many batches are left; None where nobody knows."""
        return None if self.steps is None else self.steps - self.position

    def advance(self, steps: int) -> None:
        """Take note of batches that are done."""
        self.position += steps

    def parts(self, steps: int, accumulate: int = 1) -> Iterator[tuple[int, Sizes]]:
        """Divide the next `steps` batches into runs of updates: how many of them, and the sizes of each one's batches.

        Every update takes `accumulate` whole batches; what is left over at the end is an update of its own.
        """
        whole = min(steps, max(0, self._whole - self.position))
        updates, left = divmod(whole, accumulate)
        if updates:
            yield updates, (self.size,) * accumulate
        rest = (self.size,) * left + (None,) * (steps - whole)
        for first in range(0, len(rest), accumulate):
            yield 1, rest[first : first + accumulate]

    @staticmethod
    def take(source: Any, index: tf.Tensor, size: int | None) -> tuple[Any, Share]:
        """Return what stands for the next batch, the `index`-th of the epoch, and how a replica gets its rows of it."""
        del index
        with tf.device(HOST):
            return _sized(next(source), size), own_share


class ResidentStream(Stream):
    """Batches of a set that lies on the devices: all that stands for one is its index.

    The order stays on the host, which finds out there which examples a replica needs, and how many. A device that did
    so would have the host wait for the sizes of a smaller batch.

    Args:
        data: the recipe.
        strategy: on whose devices the set is.
        epoch: fixes the order.
        steps, position: as in `Stream`.
        weigh: makes `(x, y, sample_weight)` of `(x, y)`; hashable, since compiled functions are kept by it.
    """

    on_device = True

    def __init__(
        self,
        data: Resident,
        strategy: tf.distribute.Strategy,
        epoch: int,
        *,
        steps: int,
        position: int = 0,
        weigh: Callable[..., Any] | None = None,
    ) -> None:
        replicas, size = strategy.num_replicas_in_sync, data.global_batch_size
        even = size % replicas == 0
        with tf.device(HOST):
            source = {"arrays": data.place(strategy), "order": _orders(data, epoch), "epoch": tf.constant(epoch)}
        super().__init__(
            source,
            steps=steps,
            size=size if even else None,
            whole=min(steps, data.num_examples // size) if even else 0,
            position=position,
        )
        self._data = data
        self._strategy = strategy
        self._weigh = weigh
        self.kind = (data, weigh)

    @property
    def element_spec(self) -> Any:
        """Shapes and dtypes of the set."""
        return tf.nest.map_structure(
            lambda rows, kept: tf.TensorSpec([kept.shape[0], *rows.shape], rows.dtype),
            self._data.rows,
            self.source["arrays"][0],
        )

    @property
    def devices(self) -> Any:
        """Where the parts of `source` lie; only what the devices gather from lies on them."""

        def of(device: str) -> Any:
            return tf.nest.map_structure(lambda rows: HOST if rows.on_host else device, self._data.rows)

        arrays = [of(device) for device in self._strategy.extended.worker_devices]
        return {"arrays": arrays, "order": [HOST] * len(self.source["order"]), "epoch": HOST}

    def take(self, source: Any, index: tf.Tensor, size: int | None) -> tuple[Any, Share]:  # type: ignore[override]
        """Return the batch's index and how a replica gathers its rows."""
        return index, _Gather(self._data, self._weigh, source, size)


class _Gather:
    """The rows of one replica, gathered on its device."""

    def __init__(self, data: Resident, weigh: Callable[..., Any] | None, source: Any, size: int | None) -> None:
        self._data = data
        self._weigh = weigh
        self._source = source
        self._size = size

    def __call__(self, index: tf.Tensor) -> Any:
        replica, replicas = this_replica()
        places = self._places(index, replica, replicas)
        arrays = self._source["arrays"]
        own = arrays[0 if len(arrays) == 1 else replica]
        element = tf.nest.map_structure(lambda rows, kept: rows.take(kept, places), self._data.rows, own)
        element = self._data.finish(
            element, epoch=self._source["epoch"], step=index, replica=None if replicas == 1 else replica
        )
        return element if self._weigh is None else self._weigh(*element)

    def _places(self, index: tf.Tensor, replica: Any, replicas: int) -> tf.Tensor:
        """The replica's part of the batch: places in the set, or in the replica's shard of it (int64 [B])."""
        orders = self._source["order"]
        order = orders[0 if len(orders) == 1 else replica]
        if len(orders) > 1:  # all that comes from a shard is the replica's own
            replica, replicas = 0, 1
        batch = self._data.global_batch_size // len(orders)
        with tf.device(HOST):
            start = tf.cast(index, tf.int64) * batch
            if self._size is None:
                size = tf.minimum(tf.constant(batch, tf.int64), order.shape[0] - start)
                first, end = bounds(size, tf.cast(replica, tf.int64), replicas)
                count = end - first
            else:
                count = batch // replicas
                first = tf.cast(replica, tf.int64) * count
            return tf.gather(order, start + first + tf.range(count, dtype=tf.int64))  # for a slice, XLA compiles anew

    def examples(self, index: tf.Tensor) -> tf.Tensor:
        batch = self._data.global_batch_size
        if self._size is not None:
            return tf.constant(batch)
        with tf.device(HOST):
            left = self._data.num_examples - tf.cast(index, tf.int64) * batch
            return tf.cast(tf.minimum(tf.constant(batch, tf.int64), left), tf.int32)


def _orders(data: Resident, epoch: int) -> list[tf.Tensor]:
    """The order of the whole set, or that of each shard."""
    if data.shards == 1:
        return [tf.constant(data.order(epoch))]
    return [tf.constant(data.shard_order(epoch, shard)) for shard in range(data.shards)]


def _sized(batch: Any, size: int | None) -> Any:
    """Tell TensorFlow a size that the data's specification left open."""
    if size is None:
        return batch
    return tf.nest.map_structure(lambda tensor: tf.ensure_shape(tensor, [size, *tensor.shape[1:]]), batch)
