"""Pieces: the batches of one call, cut up so that the workers of parameter servers can share them.

Of a set in memory every worker holds a copy and is told which rows to take; of any other data the chief reads the
batches and sends them. Either way a piece names its batches, so it means the same on whichever worker it runs, and
again on another one when that worker dies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from mirrorkit.data import Batches
from mirrorkit.errors import StepError
from mirrorkit.train.loop.stream import Sizes, Stream

_LARGEST_ARRAY = 2**31 - 2**20  # bytes that fit into one message between tasks


class Piece(NamedTuple):
    """Some updates' batches.

    `columns` has an entry for each batch of an update, a nest of tensors whose first dimension counts the updates:
    the batches themselves, or the rows of the set that they take.
    """

    first: int  # number of its first batch in the epoch
    updates: int
    sizes: Sizes  # of the batches of each update; None where it is not known before it runs
    columns: list[Any]

    @property
    def steps(self) -> int:
        """Number of batches."""
        return self.updates * len(self.sizes)

    def spec(self, stream: Stream, place: int) -> Any:
        """Return the specification of a column for any number of updates."""

        def of(value: tf.Tensor, shape: Any) -> tf.TensorSpec:
            return tf.TensorSpec([None, self.sizes[place], *shape], value.dtype)

        if isinstance(stream, HeldStream):
            return of(self.columns[place], [])
        return tf.nest.map_structure(lambda v, s: of(v, s.shape[1:]), self.columns[place], stream.element_spec)


def can_be_held(data: Any) -> bool:
    """Return whether the workers hold this data themselves: a set in memory that can be sent to them."""
    if not isinstance(data, Batches):
        return False
    return all(array.nbytes <= _LARGEST_ARRAY for array in tf.nest.flatten(data.split.as_element()))


class HeldStream(Stream):
    """Batches of a set of which every worker holds a copy.

    Args:
        data: the recipe.
        epoch: fixes the order.
        steps, position: as in `Stream`.
        weigh: makes `(x, y, sample_weight)` of `(x, y)`; hashable, since compiled functions are kept by it.
    """

    def __init__(
        self, data: Batches, epoch: int, *, steps: int, position: int = 0, weigh: Callable[..., Any] | None = None
    ) -> None:
        size = data.global_batch_size
        super().__init__(None, steps=steps, size=size, whole=min(steps, data.num_examples // size), position=position)
        self.data = data
        self.epoch = epoch
        self.kind = (data, weigh)
        self._weigh = weigh
        self._order = data.order(epoch)

    @property
    def element_spec(self) -> Any:
        """Shapes and dtypes of a batch."""
        return self.data.element_spec

    def pieces(self, steps: int, accumulate: int, at_once: int) -> Iterator[Piece]:
        """Divide the next `steps` batches into pieces of at most `at_once` updates."""
        first, batch = self.position, self.data.global_batch_size
        for updates, sizes in self.parts(steps, accumulate):
            for done in range(0, updates, at_once):
                now = min(at_once, updates - done)
                rows = [self._order[(first + i) * batch : (first + i + 1) * batch] for i in range(now * len(sizes))]
                columns = [tf.constant(np.stack(rows[i :: len(sizes)])) for i in range(len(sizes))]
                yield Piece(first, now, sizes, columns)
                first += now * len(sizes)

    def finish(self, arrays: Any, rows: tf.Tensor, epoch: tf.Tensor, step: tf.Tensor) -> Any:
        """Make the batch of these rows of the set; called on the worker."""
        element = tf.nest.map_structure(lambda array: tf.gather(array, rows), arrays)
        element = self.data.finish(element, epoch=epoch, step=step)
        return element if self._weigh is None else self._weigh(*element)

    def arrays(self) -> tf.data.Dataset:
        """Return a data set whose every element is the whole set in memory."""
        return tf.data.Dataset.from_tensors(self.data._tensors).repeat()


def pieces(stream: Stream, steps: int, accumulate: int, at_once: int) -> Iterator[Piece]:
    """Divide the next `steps` batches, or as many as are left, into pieces of at most `at_once` updates.

    Args:
        stream: what `Feed.epoch` gave.
        steps: how many batches.
        accumulate: batches of one update; what is left over at the end of the data is an update of its own.
        at_once: updates in a piece.

    Raises:
        StepError: the data ends before it said that it would.
    """
    if isinstance(stream, HeldStream):
        yield from stream.pieces(steps, accumulate, at_once)
        return
    first = stream.position
    rows: list[list[Any]] = []
    for row in _updates(stream, steps, accumulate):
        if rows and (len(rows) == at_once or _shapes(row) != _shapes(rows[0])):
            piece = _sent(stream, first, rows)
            yield piece
            first, rows = first + piece.steps, []
        rows.append(row)
    if rows:
        yield _sent(stream, first, rows)


def _updates(stream: Stream, steps: int, accumulate: int) -> Iterator[list[Any]]:
    """Read the batches of one update after the other."""
    row: list[Any] = []
    for done in range(steps):
        batch = next(stream.source, None)
        if batch is None:
            if stream.steps is not None:
                raise StepError(
                    f"The data said that it holds {stream.steps} batches, but ended after {stream.position + done}. "
                    "Fix its cardinality (tf.data.experimental.assert_cardinality)."
                )
            break
        row.append(batch)
        if len(row) == accumulate:
            yield row
            row = []
    if row:
        yield row


def _sent(stream: Stream, first: int, rows: list[list[Any]]) -> Piece:
    columns = [tf.nest.map_structure(lambda *values: tf.stack(values), *column) for column in zip(*rows, strict=True)]
    sizes = tuple(size if size == stream.size else None for size in map(_size, rows[0]))
    return Piece(first, len(rows), sizes, columns)


def _size(batch: Any) -> int:
    return int(tf.nest.flatten(batch)[0].shape[0])


def _shapes(row: list[Any]) -> list[tuple[int, ...]]:
    return [tuple(tensor.shape) for tensor in tf.nest.flatten(row)]
