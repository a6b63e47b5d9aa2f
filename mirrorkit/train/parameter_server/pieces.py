"""The batches of one call, cut into pieces that the workers of parameter servers share.

Of a set in memory every worker holds a copy and is told which rows to take; of any other data the chief reads the
batches and sends them. Either way a piece names its batches, so it means the same on whichever worker it runs, and
again on another one when that worker dies.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import tensorflow as tf

from mirrorkit._types import Batch, Nest, Spec
from mirrorkit.errors import StepError
from mirrorkit.train.input.epoch import EpochIterator, HostIterator, Part
from mirrorkit.train.input.resident import SentIterator
from mirrorkit.train.requirements.same_rows import require_same_rows

# For each batch of an update a nest of tensors whose first dimension counts the updates: the batches themselves, or the
# rows of the set that they take.
Columns = list[Nest]


def pieces(data: EpochIterator, steps: int, accumulate: int, at_once: int) -> Iterator[tuple[Part, Columns]]:
    """Divide the next `steps` batches, or as many as are left, into pieces of at most `at_once` updates.

    An update has `accumulate` batches; what is left over at the end of the data is an update of its own.
    """
    if isinstance(data, SentIterator):
        for part in data.parts(steps, accumulate):
            for done in range(0, part.updates, at_once):
                updates = min(at_once, part.updates - done)
                piece = Part(part.first + done * len(part.sizes), updates, part.sizes)
                yield piece, data.columns(piece)
        return
    assert isinstance(data, HostIterator)  # all data that are not sent
    first = data.position
    rows: list[list[Batch]] = []
    for row in _updates(data, steps, accumulate):
        if rows and (len(rows) == at_once or _shapes(row) != _shapes(rows[0])):
            piece, columns = _joined(data, first, rows)
            yield piece, columns
            first, rows = first + piece.batches, []
        rows.append(row)
    if rows:
        yield _joined(data, first, rows)


def specs_of(data: EpochIterator, part: Part, columns: Columns) -> list[Spec]:
    """Return the specification of each column, for any number of updates."""

    def of(value: tf.Tensor, size: int | None, shape: tf.TensorShape | list[int]) -> tf.TensorSpec:
        return tf.TensorSpec([None, size, *shape], value.dtype)

    if isinstance(data, SentIterator):
        return [of(column, size, []) for column, size in zip(columns, part.sizes, strict=True)]
    return [
        tf.nest.map_structure(lambda v, s, size=size: of(v, size, s.shape[1:]), column, data.element_spec)
        for column, size in zip(columns, part.sizes, strict=True)
    ]


def _updates(data: HostIterator, steps: int, accumulate: int) -> Iterator[list[Batch]]:
    """Read the batches of one update after the other."""
    for done in range(0, steps, accumulate):
        wanted = min(accumulate, steps - done)
        row = list(itertools.takewhile(lambda batch: batch is not None, (data.read() for _ in range(wanted))))
        for place, batch in enumerate(row):
            require_same_rows(batch, data.position + done + place)
        if len(row) < wanted and data.steps is not None:
            raise StepError(
                f"The data said that it holds {data.steps} batches, but ended after {data.position + done + len(row)}. "
                "Fix its cardinality (tf.data.experimental.assert_cardinality)."
            )
        if row:
            yield row
        if len(row) < wanted:
            return


def _joined(data: EpochIterator, first: int, rows: list[list[Batch]]) -> tuple[Part, Columns]:
    columns = [tf.nest.map_structure(lambda *values: tf.stack(values), *column) for column in zip(*rows, strict=True)]
    sizes = tuple(size if size == data.size else None for size in map(_size, rows[0]))
    return Part(first, len(rows), sizes), columns


def _size(batch: Batch) -> int:
    return int(tf.nest.flatten(batch)[0].shape[0])


def _shapes(row: list[Batch]) -> list[tuple[int, ...]]:
    return [tuple(tensor.shape) for tensor in tf.nest.flatten(row)]
