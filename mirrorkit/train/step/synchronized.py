"""Models with layers that talk to the other replicas (`BatchNormalization(synchronized=True)`), and empty shares.

Such a layer waits for every replica, so a share without examples cannot be left out; and it cannot be computed, since
the gradients of convolutions and pooling fail on no rows at all. So where one replica has nothing, every replica
computes the whole global batch: N copies of it have the mean and variance of one, and each copy's gradient counts 1/N.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from mirrorkit.errors import StepError
from mirrorkit.train.step.outputs import count_examples, unpack_batch
from mirrorkit.train.step.share import Share


def cut_out(batch: Any, share: Share) -> Any:
    """Return this replica's rows; of static size only where every replica has as many, so that all do the same."""
    own = share(batch)
    replicas = tf.distribute.get_replica_context().num_replicas_in_sync
    examples = tf.get_static_value(share.examples(batch))
    if replicas == 1 or (examples is not None and examples > 0 and examples % replicas == 0):
        return own
    return tf.nest.map_structure(_without_size, own)


def _without_size(tensor: tf.Tensor) -> tf.Tensor:
    return tf.raw_ops.PlaceholderWithDefault(input=tensor, shape=[None, *tensor.shape[1:]])


class Copies(NamedTuple):
    """By how much the sums of a share count that other replicas may compute too."""

    part: tf.Tensor  # gradient and layer state
    totals: tf.Tensor  # loss, examples, metrics: of one copy only, which is exact where a sum of thirds is not

    def weigh(self, sums: dict[str, Any]) -> dict[str, Any]:
        """Return the sums that count."""
        weights = {name: self.totals if name == "totals" else self.part for name in sums}
        return {
            name: tf.nest.map_structure(lambda t, weight=weights[name]: t * tf.cast(weight, t.dtype), value)
            for name, value in sums.items()
        }


def never_empty(batch: Any) -> tuple[Any, Copies | None]:
    """Return the share to compute in place of this one; call it in replica context, on every replica.

    Shares of static size are taken to have examples on every replica.

    Args:
        batch: a nest of tensors with the same first dimension: this replica's rows.

    Returns:
        Rows, and how their sums count (None for fully).

    Raises:
        StepError: a share of static size 0.
    """
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
    replica = context.replica_id_in_sync_group
    first = tf.reduce_sum(sizes[:replica])
    is_whole = tf.reduce_any(sizes == 0)
    begin = tf.where(is_whole, tf.zeros_like(first), first)
    end = tf.where(is_whole, tf.reduce_sum(sizes), first + own)
    rows = tf.nest.map_structure(lambda tensor: context.all_gather(tensor, axis=0)[begin:end], batch)
    part = tf.where(is_whole, 1 / replicas, 1.0)
    return rows, Copies(part, tf.where(is_whole & (replica > 0), 0.0, 1.0))
