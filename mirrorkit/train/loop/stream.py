"""Streams: the batches of one epoch as compiled calls take them, read on the host or held on the devices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from mirrorkit.data import Resident
from mirrorkit.data.rows import HOST
from mirrorkit.errors import StepError
from mirrorkit.train.step.share import Share, bounds, own_share, some_is_empty, this_replica

Sizes = tuple[int | None, ...]  # of the batches of one update; None where a size is not known before it runs


class Stream:
    """Where an epoch's batches come from, and how far it is.

    Args:
        source: what a compiled call is given to take its batches from: a nest of tensors, or an iterator.
        steps: how many batches there are; None where nobody knows.
        size: examples in a batch, where it is known.
        whole: how many batches have that size.
        last: examples in a batch after those, where it is known.
        position: batches that are done already.
    """

    kind: Any = "host"  # streams of one kind share their compiled functions
    on_device = False

    def __init__(
        self,
        source: Any,
        *,
        steps: int | None,
        size: int | None,
        whole: int,
        last: int | None = None,
        position: int = 0,
    ) -> None:
        self.source = source
        self.steps = steps
        self.position = position
        self.size = size
        self._whole = whole
        self._last = last

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
        rest = (self.size,) * left + (self._last,) * (steps - whole)
        for first in range(0, len(rest), accumulate):
            yield 1, rest[first : first + accumulate]

    def size_of(self, batch: int) -> int | None:
        """Return how many examples the batch of this number has; None where that is not known."""
        return self.size if batch < self._whole else self._last

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
        whole, last = divmod(data.num_examples, data.global_batch_size)
        with tf.device(HOST):
            source = {"arrays": data.place(strategy), "order": _orders(data, epoch), "epoch": tf.constant(epoch)}
        super().__init__(
            source,
            steps=steps,
            size=data.global_batch_size,
            whole=min(steps, whole),
            last=last or None,
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
        assert size is not None  # a recipe says so
        return index, _Gather(self._data, self._weigh, source, size)


class _Gather:
    """The rows of one replica, gathered on its device."""

    def __init__(self, data: Resident, weigh: Callable[..., Any] | None, source: Any, size: int) -> None:
        self._data = data
        self._weigh = weigh
        self._source = source
        self._size = size

    def __call__(self, index: tf.Tensor) -> Any:
        return self._rows(index, this_replica()[0])

    def or_all(self, index: tf.Tensor) -> tuple[Any, bool | tf.Tensor]:
        replicas = this_replica()[1]
        if self._data.shards > 1 or not some_is_empty(self._size, replicas):
            return self(index), False
        # As each replica has them: augmentations draw other random numbers for each.
        parts = [self._rows(index, replica) for replica in range(replicas)]
        return tf.nest.map_structure(lambda *rows: tf.concat(rows, 0), *parts), True

    def examples(self, index: tf.Tensor) -> tf.Tensor:
        del index
        return tf.constant(self._size)

    def _rows(self, index: tf.Tensor, replica: Any) -> Any:
        """Return the rows of any replica, from the set on this one's device."""
        this, replicas = this_replica()
        arrays = self._source["arrays"]
        own = arrays[this % len(arrays)]  # each worker has those of its own devices
        places = self._places(index, replica, replicas)
        element = tf.nest.map_structure(lambda rows, kept: rows.take(kept, places), self._data.rows, own)
        number = None if replicas == 1 else replica
        element = self._data.finish(element, epoch=self._source["epoch"], step=index, replica=number)
        return element if self._weigh is None else self._weigh(*element)

    def _places(self, index: tf.Tensor, replica: Any, replicas: int) -> tf.Tensor:
        """Return a replica's part of the batch: places in the set, or in the replica's shard of it (int64 [B])."""
        orders = self._source["order"]
        order = orders[replica % len(orders)]
        if len(orders) > 1:  # all that comes from a shard is the replica's own
            replica, replicas = 0, 1
        first, end = bounds(self._size // len(orders), replica, replicas)
        with tf.device(HOST):
            start = tf.cast(index, tf.int64) * (self._data.global_batch_size // len(orders))
            return tf.gather(order, start + tf.range(first, end, dtype=tf.int64))  # for a slice, XLA compiles each time


def _orders(data: Resident, epoch: int) -> list[tf.Tensor]:
    """The order of the whole set, or that of each shard."""
    if data.shards == 1:
        return [tf.constant(data.order(epoch))]
    return [tf.constant(data.shard_order(epoch, shard)) for shard in range(data.shards)]


def _sized(batch: Any, size: int | None) -> Any:
    """Tell TensorFlow a size that the data's specification left open."""
    if size is None:
        return batch
    for tensor in tf.nest.flatten(batch):
        if tensor.shape[0] not in (None, size):
            raise StepError(other_size(size))
    return tf.nest.map_structure(lambda tensor: tf.ensure_shape(tensor, [size, *tensor.shape[1:]]), batch)


def other_size(size: int | None) -> str:
    """Say that a batch has not as many examples as it should."""
    return (
        f"A batch does not hold the {size or 'number of'} examples that its recipe says. A `map` must keep the number "
        "of examples in a batch, and num_examples must be that of the files. For batches of any size, give a "
        "tf.data.Dataset: train.dataset(), mapped."
    )
