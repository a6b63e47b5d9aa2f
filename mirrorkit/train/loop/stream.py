"""Streams: the batches of one epoch as compiled calls take them, read on the host or held on the devices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from mirrorkit.data import Resident
from mirrorkit.train.step.share import HOST, Share, bounds, own_share, some_is_empty, this_replica

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
        super().__init__(
            {"arrays": data.place(strategy), "order": _orders(data, strategy, epoch), "epoch": tf.constant(epoch)},
            steps=steps,
            size=size if even else None,
            whole=min(steps, data.num_examples // size) if even else 0,
            position=position,
        )
        self._data = data
        self._weigh = weigh
        self.kind = (data, weigh)

    @property
    def element_spec(self) -> Any:
        """Shapes and dtypes of the set."""
        return tf.nest.map_structure(tf.TensorSpec.from_tensor, self.source["arrays"][0])

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
        return self._rows(index, this_replica()[0])

    def or_all(self, index: tf.Tensor) -> tuple[Any, bool | tf.Tensor]:
        replica, replicas = this_replica()
        batch, last = self._data.global_batch_size, self._data.num_examples % self._data.global_batch_size
        even = self._size is not None or self._data.shards > 1
        if even or not any(some_is_empty(size, replicas) for size in (batch, last or batch)):
            return self(index), False
        with tf.device(HOST):
            is_all = some_is_empty(self.examples(index), replicas)

        def of_all() -> Any:  # as each replica has them: augmentations draw other random numbers for each
            parts = [self._rows(index, one) for one in range(replicas)]
            return tf.nest.map_structure(lambda *rows: tf.concat(rows, 0), *parts)

        return tf.cond(is_all, of_all, lambda: self._rows(index, replica)), is_all

    def _rows(self, index: tf.Tensor, replica: Any) -> Any:
        """Return the rows of any replica, from the set on this one's device."""
        this, replicas = this_replica()
        local = 0 if len(self._source["arrays"]) == 1 else this
        places = self._places(self._source["order"][local], index, replica, replicas)
        element = tf.nest.map_structure(lambda array: tf.gather(array, places), self._source["arrays"][local])
        own = None if replicas == 1 else replica
        element = self._data.finish(element, epoch=self._source["epoch"], step=index, replica=own)
        return element if self._weigh is None else self._weigh(*element)

    def _places(self, order: tf.Tensor, index: tf.Tensor, replica: Any, replicas: int) -> tf.Tensor:
        shards = self._data.shards
        batch = self._data.global_batch_size // shards  # from this replica's order: its shard's, or the whole set's
        start = index * batch
        if self._size is not None:
            own = self._size // replicas
            first = start if shards > 1 else start + replica * own
            return tf.gather(order, first + tf.range(own, dtype=tf.int64))  # a slice would have XLA compile each anew
        size = tf.minimum(tf.constant(batch, tf.int64), order.shape[0] - start)
        first, end = (0, size) if shards > 1 else bounds(size, tf.cast(replica, tf.int64), replicas)
        return order[start + first : start + end]

    def examples(self, index: tf.Tensor) -> tf.Tensor:
        batch = self._data.global_batch_size
        if self._size is not None:
            return tf.constant(batch)
        left = self._data.num_examples - index * batch
        return tf.cast(tf.minimum(tf.constant(batch, tf.int64), left), tf.int32)


def _orders(data: Resident, strategy: tf.distribute.Strategy, epoch: int) -> list[tf.Tensor]:
    devices = strategy.extended.worker_devices
    if data.shards == 1:
        orders = [data.order(epoch)] * len(devices)
    else:
        orders = [data.shard_order(epoch, shard) for shard in range(data.shards)]
    placed = []
    for device, order in zip(devices, orders, strict=True):
        with tf.device(device):
            placed.append(tf.identity(tf.constant(order)))
    return placed


def _sized(batch: Any, size: int | None) -> Any:
    """Tell TensorFlow a size that the data's specification left open."""
    if size is None:
        return batch
    return tf.nest.map_structure(lambda tensor: tf.ensure_shape(tensor, [size, *tensor.shape[1:]]), batch)
