"""The sums of a replica whose share of a batch is empty: zeros, without a call of the model.

Where replicas communicate within the model (`BatchNormalization(synchronized=True)`, a loss over the whole batch), no
replica may leave the call out, since the others wait for it; and the gradients of convolutions and pooling fail on zero
rows. So if any share is empty, every replica computes the whole global batch, and its sums count 1/N. Mean, variance
and gathered rows of N copies of a batch are those of the batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from mirrorkit._types import Batch, Nest
from mirrorkit.train.keras_model.outputs import count_examples
from mirrorkit.train.step.global_batch import GlobalBatch, this_replica


def has_no_rows(batch: Nest) -> bool:
    """Return whether a share is known beforehand to have no examples."""
    return bool(tf.nest.flatten(batch)[0].shape[0] == 0)


def of_size(batch: Nest, size: int | None) -> Nest:
    """Return the specs of a share like this one with so many examples, or with any number."""
    return tf.nest.map_structure(lambda tensor: tf.TensorSpec([size, *tensor.shape[1:]], tensor.dtype), batch)


def unless_empty(batch: Nest, full: Callable[[], Nest], *, rows_of_none: bool = False) -> Nest:
    """Call `full`, or return zeros in its place where the share turns out to have no examples.

    An empty share would make statistics NaN, and the gradient of max pooling kills the process on CPU. `full` returns a
    nest of tensors of static shape, and None; with `rows_of_none` outputs [rows, ...] in place of sums.
    """
    if tf.nest.flatten(batch)[0].shape[0] is not None:
        return full()
    found: list[Nest] = []

    def some() -> Nest:
        found.append(full())  # the first branch is traced first
        return found[0]

    def nothing() -> Nest:
        return tf.nest.map_structure(lambda t: None if t is None else tf.zeros(of_none(t.shape), t.dtype), found[0])

    def of_none(shape: tf.TensorShape) -> Any:
        return [0, *(size or 0 for size in shape[1:])] if rows_of_none and shape.rank else shape

    return tf.cond(count_examples(batch) > 0, some, nothing)


class Copies(NamedTuple):
    """How the sums of a share count: fully, or as one of N copies where every replica computes all rows."""

    is_all: bool | tf.Tensor = False  # whether every replica has all rows

    def weigh(self, sums: dict[str, Nest]) -> dict[str, Nest]:
        """Return the sums that count."""
        if self.is_all is False:
            return sums
        replica, replicas = this_replica()
        part = tf.where(self.is_all, 1 / replicas, 1.0)  # gradient and layer state
        # Loss, examples and metrics of one copy only, which is exact where a sum of thirds is not.
        totals = tf.where(self.is_all & (replica > 0), 0.0, 1.0)
        weights = {name: totals if name in ("totals", "divisors") else part for name in sums}
        return {
            name: tf.nest.map_structure(lambda t, weight=weights[name]: t * tf.cast(weight, t.dtype), value)
            for name, value in sums.items()
        }


class Separate:
    """Each replica computes its own rows by itself; without any it adds zeros."""

    communicate = False

    def rows(self, batch: GlobalBatch) -> tuple[Batch, Copies]:
        """Return the rows that this replica computes, and how their sums count."""
        return batch.rows(), Copies()

    def run(self, rows: Nest, compute: Callable[[], Nest], *, outputs: bool = False) -> Nest:
        """Compute sums of these rows, or `outputs` [rows, ...]."""
        return unless_empty(rows, compute, rows_of_none=outputs)


class Communicating(Separate):
    """Replicas wait for each other within a pass, so each of them runs it, and none is without rows."""

    communicate = True

    def rows(self, batch: GlobalBatch) -> tuple[Batch, Copies]:
        """Return this replica's rows, or those of all where some replica would get none."""
        rows, is_all = batch.rows_or_all()
        return rows, Copies(is_all)

    def run(self, rows: Nest, compute: Callable[[], Nest], *, outputs: bool = False) -> Nest:
        """Compute."""
        return compute()
