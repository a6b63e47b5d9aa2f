"""An epoch of a set that lies on the devices, or on every worker of parameter servers: only row numbers travel."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from mirrorkit._types import Batch, Nest
from mirrorkit.data import HOST, Batches, Resident, RowsToMake, bounds
from mirrorkit.train.input.epoch import EpochIterator
from mirrorkit.train.requirements.data import with_same_rows
from mirrorkit.train.step.global_batch import some_is_empty, this_replica

Weigh = Callable[..., Any]  # makes (x, y, sample_weight) of (x, y); hashable, since compiled functions are kept by it


class ResidentIterator(EpochIterator):
    """Batches of a set that lies on the devices; a compiled call needs only the number of a batch.

    The order of the examples stays on the host, which works out which of them a replica needs. If a device did so, the
    host would have to wait for the size of a smaller batch.
    """

    on_device = True

    def __init__(
        self,
        data: Resident,
        strategy: tf.distribute.Strategy,
        epoch: int,
        *,
        weigh: Weigh | None = None,
        **place: Any,
    ) -> None:
        with tf.device(HOST):
            source = {
                "arrays": data.place(strategy),
                "order": tf.constant(data.order(epoch)),
                "epoch": tf.constant(epoch),
            }
        super().__init__(source, **place)
        self.kind = (data, weigh)
        self.batch = functools.partial(_ResidentBatch, data, weigh)
        self.element_spec = tf.nest.map_structure(
            lambda rows, kept: tf.TensorSpec([kept.shape[0], *rows.shape], rows.dtype), data.rows, source["arrays"][0]
        )


@dataclass(frozen=True)
class _ResidentBatch:
    """A global batch of which each replica gathers its rows on its device; see `GlobalBatch`."""

    _data: Resident
    _weigh: Weigh | None
    _source: Nest
    _index: tf.Tensor
    _size: int

    def rows(self) -> Batch:
        return self._between(*bounds(self._size, *this_replica()))

    def rows_or_all(self) -> tuple[Batch, bool | tf.Tensor]:
        replicas = this_replica()[1]
        if not some_is_empty(self._size, replicas):
            return self.rows(), False
        return self._between(0, self._size), True

    def examples(self) -> tf.Tensor:
        return tf.constant(self._size)

    def _between(self, first: Any, end: Any) -> Batch:
        """Return these rows of the batch, from the set on this replica's device."""
        this, replicas = this_replica()
        arrays = self._source["arrays"]
        own = arrays[this % len(arrays)]  # each worker has those of its own devices
        rows = self._data.rows_to_make(first, end, self._size)
        places = self._places(rows)
        element = tf.nest.map_structure(lambda rows, kept: rows.take(kept, places), self._data.rows, own)
        made = None if replicas == 1 else rows
        return _finished(self._data, self._weigh, element, self._source["epoch"], self._index, rows=made)

    def _places(self, rows: RowsToMake) -> tf.Tensor:
        """Return where these rows are in the set (int64 [B])."""
        with tf.device(HOST):
            start = tf.cast(self._index, tf.int64) * self._data.global_batch_size
            numbers = tf.range(rows.made_first, rows.made_end, dtype=tf.int64)
            return tf.gather(self._source["order"], start + numbers)  # for a slice, XLA compiles each time


class SentIterator(EpochIterator):
    """Batches of a set of which every worker of parameter servers has a copy; each is read as its row numbers.

    Attributes:
        data: the set, and how its batches are made.
        epoch: the number of the epoch.
    """

    element_spec = tf.TensorSpec([None], tf.int64)  # of the numbers of a batch's rows

    def __init__(self, data: Batches, epoch: int, *, weigh: Weigh | None = None, **place: Any) -> None:
        super().__init__(None, **place)
        self.data, self.epoch, self._weigh = data, epoch, weigh
        self.kind = (data, weigh)
        self._order = data.order(epoch)

    def read(self, number: int) -> np.ndarray | None:
        """Return the rows that make up the batch of this number; None at the end of the data."""
        rows = self._order[number * self.data.global_batch_size :][: self.data.global_batch_size]
        return rows if len(rows) else None

    def make(self, arrays: Nest, rows: tf.Tensor, step: tf.Tensor, epoch: tf.Tensor) -> Batch:
        """Make the batch of these rows of the set; called on the worker."""
        element = tf.nest.map_structure(lambda array: tf.gather(array, rows), arrays)
        return _finished(self.data, self._weigh, element, epoch, step)

    def arrays(self) -> tf.data.Dataset:
        """Return a data set whose every element is the whole set in memory."""
        return tf.data.Dataset.from_tensors(self.data.host_tensors).repeat()


def _finished(data: Batches, weigh: Weigh | None, element: Nest, epoch: Any, step: tf.Tensor, **rows: Any) -> Batch:
    """Make a batch of gathered examples, as the recipe says."""
    element = data.finish(element, epoch=epoch, step=step, **rows)
    return with_same_rows(element if weigh is None else weigh(*element), step)
