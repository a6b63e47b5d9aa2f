"""Which part of a global batch belongs to this replica, and what to do when that is nothing.

Loop reads global batches on the host, and every replica cuts out its own rows inside the compiled call. So a batch is
split in one way on every strategy, its size stays static where it is, and no iterator lives on a device: TensorFlow's
per-device iterators each run a tuning thread that can hold up the end of an epoch for many seconds.
"""

from __future__ import annotations

from typing import Any, Protocol

import tensorflow as tf

from mirrorkit.data.rows import HOST
from mirrorkit.train.step.outputs import count_examples, unpack_batch


class Share(Protocol):
    """How a replica comes to its rows of a global batch, whatever stands for that batch."""

    def __call__(self, batch: Any, /) -> Any:
        """Return this replica's rows; called in replica context."""

    def or_all(self, batch: Any, /) -> tuple[Any, bool | tf.Tensor]:
        """Return this replica's rows, or those of all where some replica would get none; in replica context.

        Also returned is whether they are those of all: a bool where that is known beforehand, else a tensor on the
        host, which knows the size of a global batch. Every replica comes to the same without asking another.
        """

    def examples(self, batch: Any, /) -> tf.Tensor:
        """Return the number of examples in the whole global batch (int32 scalar)."""


class _OwnShare:
    """Return this replica's rows of a global batch (a nest of tensors with the same first dimension).

    The rows are consecutive and in the order of the replicas; the first replicas get `ceil(batch / replicas)` each,
    the last ones what is left, which may be nothing.
    """

    def __call__(self, batch: Any) -> Any:
        replica, replicas = this_replica()
        if replicas == 1:
            return batch
        with tf.device(HOST):  # cut first, so that only a replica's own rows travel to its device
            return tf.nest.map_structure(lambda tensor: _rows(tensor, replica, replicas), batch)

    def or_all(self, batch: Any) -> tuple[Any, bool | tf.Tensor]:
        replica, replicas = this_replica()
        with tf.device(HOST):
            is_all = some_is_empty(self.examples(batch), replicas)
            if isinstance(is_all, bool):
                return batch if is_all else self(batch), is_all
            replica, replicas = tf.where(is_all, 0, replica), tf.where(is_all, 1, replicas)  # as if it were alone
            return tf.nest.map_structure(lambda tensor: _rows(tensor, replica, replicas), batch), is_all

    def examples(self, batch: Any) -> tf.Tensor:
        return count_examples(unpack_batch(batch))


own_share: Share = _OwnShare()


def this_replica() -> tuple[Any, int]:
    """Return this replica's number (a Python int where it is known) and how many there are; in replica context."""
    context = tf.distribute.get_replica_context()
    replica = context.replica_id_in_sync_group
    static = tf.get_static_value(replica)
    return (replica if static is None else int(static)), context.num_replicas_in_sync


def bounds(size: Any, replica: Any, replicas: Any) -> tuple[Any, Any]:
    """Return the first row of a batch of `size` rows that belongs to `replica`, and the first that no longer does."""
    largest = -(-size // replicas)
    least = min if isinstance(size, int) and isinstance(replica, int) else tf.minimum
    return least(replica * largest, size), least((replica + 1) * largest, size)


def some_is_empty(size: int | tf.Tensor, replicas: int) -> bool | tf.Tensor:
    """Return whether one of the replicas gets no row of a batch of this size; a bool where that is known beforehand."""
    static = tf.get_static_value(size)
    first, end = bounds(size if static is None else int(static), replicas - 1, replicas)  # of the last one
    return replicas > 1 and first >= end


def _rows(tensor: tf.Tensor, replica: Any, replicas: Any) -> tf.Tensor:
    size = tf.shape(tensor)[0] if tensor.shape[0] is None else tensor.shape[0]
    first, end = bounds(size, replica, replicas)
    return tensor[first:end]
