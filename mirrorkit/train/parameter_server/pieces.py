"""The batches of one call, cut into pieces that the workers of parameter servers share.

The chief reads the batches and sends them; those of a set that every worker was sent are read as the numbers of their
rows. A piece names its batches, so it means the same on whichever worker it runs, and again on another one when that
worker dies.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import tensorflow as tf

from mirrorkit._types import Batch, Nest, Spec
from mirrorkit.errors import StepError
from mirrorkit.train.input.epoch import HostIterator, UpdateRun
from mirrorkit.train.input.resident import SentIterator
from mirrorkit.train.requirements.same_rows import require_same_rows

# For each batch of an update a nest of tensors whose first dimension counts the updates: what `read` gives of them.
Columns = list[Nest]


def pieces(
    data: HostIterator | SentIterator, steps: int, accumulate: int, at_once: int
) -> Iterator[tuple[UpdateRun, Columns]]:
    """Divide the next `steps` batches, or as many as are left, into pieces of at most `at_once` updates.

    An update has `accumulate` batches; what is left over at the end of the data is an update of its own.
    """
    first = data.position
    updates = _updates(data, steps, accumulate)
    for _, alike in itertools.groupby(updates, lambda update: [tensor.shape for tensor in tf.nest.flatten(update)]):
        while rows := list(itertools.islice(alike, at_once)):
            columns = [tf.nest.map_structure(lambda *v: tf.stack(v), *column) for column in zip(*rows, strict=True)]
            found = [tf.nest.flatten(batch)[0].shape[0] for batch in rows[0]]
            piece = UpdateRun(first, len(rows), tuple(size if size == data.size_of(0) else None for size in found))
            yield piece, columns
            first += piece.batches


def specs(data: HostIterator | SentIterator, piece: UpdateRun, columns: Columns) -> list[Spec]:
    """Return the specification of each column, for any number of updates."""
    return [
        tf.nest.map_structure(
            lambda v, s, size=size: tf.TensorSpec([None, size, *s.shape[1:]], v.dtype), column, data.element_spec
        )
        for column, size in zip(columns, piece.sizes, strict=True)
    ]


def _updates(data: HostIterator | SentIterator, steps: int, accumulate: int) -> Iterator[list[Batch]]:
    """Read the batches of one update after the other."""
    for done in range(data.position, data.position + steps, accumulate):
        wanted = range(done, min(done + accumulate, data.position + steps))
        update = list(itertools.takewhile(lambda batch: batch is not None, map(data.read, wanted)))
        for number, batch in zip(wanted, update, strict=False):
            require_same_rows(batch, number)
        if len(update) < len(wanted) and data.steps is not None:
            raise StepError(
                f"The data claims to hold {data.steps} batches, but ended after {done + len(update)}. Fix its "
                "cardinality (tf.data.experimental.assert_cardinality)."
            )
        if update:
            yield update
        if len(update) < len(wanted):
            return
