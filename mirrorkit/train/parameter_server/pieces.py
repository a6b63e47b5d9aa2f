"""The batches of one call, cut into pieces that the workers of parameter servers share.

Of a set in memory every worker holds a copy and is told which rows to take; of any other data the chief reads the
batches and sends them. Either way a piece names its batches, so it means the same on whichever worker it runs, and
again on another one when that worker dies.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from mirrorkit._types import Batch, Nest, Spec
from mirrorkit.errors import StepError
from mirrorkit.train.input.epoch import EpochIterator, HostIterator, UpdateRun
from mirrorkit.train.input.resident import SentIterator
from mirrorkit.train.requirements.same_rows import require_same_rows

# For each batch of an update a nest of tensors whose first dimension counts the updates: the batches themselves, or the
# rows of the set that they take.
Columns = list[Nest]


class HostPieces:
    """Pieces of batches that the chief reads.

    Attributes:
        whole: what makes the data set that is sent to each worker once, and what stands for it; None for nothing.
    """

    whole: tuple[Any, Callable[[], tf.data.Dataset]] | None = None
    epoch = 0

    def __init__(self, data: HostIterator) -> None:
        self._data = data

    def cut(self, steps: int, accumulate: int, at_once: int) -> Iterator[tuple[UpdateRun, Columns]]:
        """Divide the next `steps` batches, or as many as are left, into pieces of at most `at_once` updates.

        An update has `accumulate` batches; what is left over at the end of the data is an update of its own.
        """
        first = self._data.position
        rows: list[list[Batch]] = []
        for row in self._updates(steps, accumulate):
            if rows and (len(rows) == at_once or _shapes(row) != _shapes(rows[0])):
                piece, columns = self._joined(first, rows)
                yield piece, columns
                first, rows = first + piece.batches, []
            rows.append(row)
        if rows:
            yield self._joined(first, rows)

    def specs(self, part: UpdateRun, columns: Columns) -> list[Spec]:
        """Return the specification of each column, for any number of updates."""
        return [
            tf.nest.map_structure(
                lambda v, s, size=size: tf.TensorSpec([None, size, *s.shape[1:]], v.dtype),
                column,
                self._data.element_spec,
            )
            for column, size in zip(columns, part.sizes, strict=True)
        ]

    def batch(self, taken: Nest, whole: Nest, epoch: tf.Tensor, step: tf.Tensor) -> Batch:
        """Make a batch of what a column has for it; called on the worker."""
        return taken

    def _updates(self, steps: int, accumulate: int) -> Iterator[list[Batch]]:
        """Read the batches of one update after the other."""
        data = self._data
        for done in range(0, steps, accumulate):
            wanted = min(accumulate, steps - done)
            row = list(itertools.takewhile(lambda batch: batch is not None, (data.read() for _ in range(wanted))))
            for place, batch in enumerate(row):
                require_same_rows(batch, data.position + done + place)
            if len(row) < wanted and data.steps is not None:
                raise StepError(
                    f"The data said that it holds {data.steps} batches, but ended after "
                    f"{data.position + done + len(row)}. Fix its cardinality (tf.data.experimental.assert_cardinality)."
                )
            if row:
                yield row
            if len(row) < wanted:
                return

    def _joined(self, first: int, rows: list[list[Batch]]) -> tuple[UpdateRun, Columns]:
        columns = [
            tf.nest.map_structure(lambda *values: tf.stack(values), *column) for column in zip(*rows, strict=True)
        ]
        sizes = tuple(size if size == self._data.size else None for size in map(_size, rows[0]))
        return UpdateRun(first, len(rows), sizes), columns


class SentPieces:
    """Pieces of a set of which each worker was sent a copy; see `HostPieces`."""

    def __init__(self, data: SentIterator) -> None:
        self._data = data
        self.whole = data.data, data.arrays
        self.epoch = data.epoch

    def cut(self, steps: int, accumulate: int, at_once: int) -> Iterator[tuple[UpdateRun, Columns]]:
        """Divide the next `steps` batches."""
        for part in self._data.parts(steps, accumulate):
            for done in range(0, part.updates, at_once):
                updates = min(at_once, part.updates - done)
                piece = UpdateRun(part.first + done * len(part.sizes), updates, part.sizes)
                yield piece, self._data.columns(piece)

    def specs(self, part: UpdateRun, columns: Columns) -> list[Spec]:
        """Return the specification of each column."""
        return [tf.TensorSpec([None, size], column.dtype) for column, size in zip(columns, part.sizes, strict=True)]

    def batch(self, taken: Nest, whole: Nest, epoch: tf.Tensor, step: tf.Tensor) -> Batch:
        """Make a batch of these rows."""
        return self._data.finish(whole, taken, epoch, step)


def pieces_of(data: EpochIterator) -> HostPieces | SentPieces:
    """Return how an epoch is cut."""
    if isinstance(data, SentIterator):
        return SentPieces(data)
    assert isinstance(data, HostIterator)  # all data that are not sent
    return HostPieces(data)


def _size(batch: Batch) -> int:
    return int(tf.nest.flatten(batch)[0].shape[0])


def _shapes(row: list[Batch]) -> list[tuple[int, ...]]:
    return [tuple(tensor.shape) for tensor in tf.nest.flatten(row)]
