"""Models with layers that talk to the other replicas (`BatchNormalization(synchronized=True)`), and empty shares.

Such a layer waits for every replica, so a share without examples cannot be left out; and it cannot be computed, since
the gradients of convolutions and pooling fail on no rows at all. So where one replica has nothing, every replica
computes the whole global batch: N copies of it have the mean and variance of one, and each copy's gradient counts 1/N.
"""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from mirrorkit._types import Batch, Nest
from mirrorkit.train.step.global_batch import GlobalBatch, this_replica


class Copies(NamedTuple):
    """By how much the sums of a share count that other replicas may compute too."""

    part: tf.Tensor  # gradient and layer state
    totals: tf.Tensor  # loss, examples, metrics: of one copy only, which is exact where a sum of thirds is not

    @classmethod
    def of(cls, is_all: bool | tf.Tensor) -> Copies:
        """Return how the sums of this replica count where `is_all` says that every replica has all rows."""
        replica, replicas = this_replica()
        return cls(tf.where(is_all, 1 / replicas, 1.0), tf.where(is_all & (replica > 0), 0.0, 1.0))

    def weigh(self, sums: dict[str, Nest]) -> dict[str, Nest]:
        """Return the sums that count."""
        weights = {name: self.totals if name == "totals" else self.part for name in sums}
        return {
            name: tf.nest.map_structure(lambda t, weight=weights[name]: t * tf.cast(weight, t.dtype), value)
            for name, value in sums.items()
        }


def never_empty(batch: GlobalBatch) -> tuple[Batch, Copies | None]:
    """Return the rows that this replica computes, and how their sums count (None for fully); on every replica."""
    rows, is_all = batch.rows_or_all()
    return rows, None if is_all is False else Copies.of(is_all)
