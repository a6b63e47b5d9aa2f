"""Models with layers that talk to the other replicas (`BatchNormalization(synchronized=True)`), and empty shares.

Such a layer waits for every replica, so a share without examples cannot be left out; and it cannot be computed, since
the gradients of convolutions and pooling fail on no rows at all. So where one replica has nothing, every replica
computes the whole global batch: N copies of it have the mean and variance of one, and each copy's gradient counts 1/N.
"""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from mirrorkit._types import Nest
from mirrorkit.errors import StepError
from mirrorkit.train.step.outputs import count_examples, unpack_batch
from mirrorkit.train.step.share import Share, this_replica


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


def never_empty(batch: Nest, share: Share | None) -> tuple[Nest, Copies | None]:
    """Return the rows that this replica computes; call it in replica context, on every replica.

    Args:
        batch: what `share` takes; without one a nest of tensors with the same first dimension, this replica's rows.
        share: None where nobody knows the global batch. The replicas then ask each other, and a GPU's host waits for
            the answer.

    Returns:
        Rows, and how their sums count (None for fully).

    Raises:
        StepError: this replica's rows are of static size 0.
    """
    if share is None:
        return _gathered(batch)
    rows, is_all = share.or_all(batch)
    return rows, None if is_all is False else Copies.of(is_all)


def _gathered(batch: Nest) -> tuple[Nest, Copies | None]:
    """Return rows from this replica's and the others'; shares of static size are assumed to be empty nowhere."""
    context = tf.distribute.get_replica_context()
    replicas, size = context.num_replicas_in_sync, tf.nest.flatten(batch)[0].shape[0]
    if size == 0:
        raise StepError(
            "A replica got no example of this batch, and the model has synchronized layers, which wait for every "
            "replica. Train with a Loop, which shares such a batch among all of them, or with larger batches."
        )
    if replicas == 1 or size is not None:
        return batch, None
    own = tf.cast(count_examples(unpack_batch(batch)), tf.int64)
    sizes = context.all_gather(own[tf.newaxis], axis=0)
    first = tf.reduce_sum(sizes[: context.replica_id_in_sync_group])
    is_all = tf.reduce_any(sizes == 0)
    begin = tf.where(is_all, tf.zeros_like(first), first)
    end = tf.where(is_all, tf.reduce_sum(sizes), first + own)
    rows = tf.nest.map_structure(lambda tensor: context.all_gather(tensor, axis=0)[begin:end], batch)
    return rows, Copies.of(is_all)
