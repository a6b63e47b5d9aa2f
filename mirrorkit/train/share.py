"""Which part of a global batch belongs to this replica.

Loop reads global batches on the host, and every replica cuts out its own rows inside the compiled call. So a batch is
split in one way on every strategy, its size stays static where it is, and no iterator lives on a device: TensorFlow's
per-device iterators each run a tuning thread that can hold up the end of an epoch for many seconds.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

HOST = "/device:CPU:0"  # of whichever worker the replica is on


def own_share(batch: Any) -> Any:
    """Return this replica's rows of a global batch; call it in replica context.

    The rows are consecutive and in the order of the replicas; the first replicas get `ceil(batch / replicas)` each,
    the last ones what is left, which may be nothing.

    Args:
        batch: a nest of tensors with the same first dimension.
    """
    context = tf.distribute.get_replica_context()
    replicas = context.num_replicas_in_sync
    if replicas == 1:
        return batch
    replica = context.replica_id_in_sync_group
    static = tf.get_static_value(replica)
    with tf.device(HOST):  # cut first, so that only a replica's own rows travel to its device
        return tf.nest.map_structure(lambda t: _rows(t, replica if static is None else int(static), replicas), batch)


def _rows(tensor: tf.Tensor, replica: Any, replicas: int) -> tf.Tensor:
    size = tensor.shape[0]
    if size is None:
        size = tf.shape(tensor)[0]
    largest = -(-size // replicas)
    if isinstance(size, int) and isinstance(replica, int):
        return tensor[min(replica * largest, size) : min((replica + 1) * largest, size)]
    return tensor[tf.minimum(replica * largest, size) : tf.minimum((replica + 1) * largest, size)]
