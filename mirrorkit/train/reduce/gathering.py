"""Rows of all replicas in one tensor, with their gradient."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from mirrorkit._types import Nest
from mirrorkit.errors import StepError

_GATHERED = (tf.float16, tf.float32, tf.float64, tf.int32, tf.int64)  # by TensorFlow, on several workers
_AS = {tf.bfloat16: tf.float32} | dict.fromkeys((tf.bool, tf.uint8, tf.int8, tf.uint16, tf.int16), tf.int32)


def gather_rows(rows: Nest, sizes: tf.Tensor) -> Nest:
    """Put the rows of all replicas together, in the order of the replicas; in replica context.

    The gradient for a replica's rows is the sum of those that all replicas have for them.

    Args:
        rows: a nest of tensors of one number of rows, which may be 0 and differ between replicas.
        sizes: the numbers of rows of all replicas, [replicas], int64.
    """
    return tf.nest.map_structure(lambda tensor: _gather(tensor, sizes), rows)


def gather_sizes(size: tf.Tensor) -> tf.Tensor:
    """Return the numbers of all replicas, [replicas], int64; in replica context."""
    own = tf.identity(tf.cast(size, tf.int64))[tf.newaxis]
    return tf.distribute.get_replica_context().all_gather(own, axis=0)


def _gather(tensor: tf.Tensor, sizes: tf.Tensor) -> tf.Tensor:
    context = tf.distribute.get_replica_context()
    dtype = tensor.dtype if tensor.dtype in _GATHERED else _AS.get(tensor.dtype)
    if dtype is None:
        raise StepError(
            f"Rows of dtype {tensor.dtype.name} were to be gathered from all replicas, which TensorFlow cannot do. "
            "Cast them to float32 or int64 before."
        )

    @tf.custom_gradient  # type: ignore[untyped-decorator, unused-ignore]
    def gathered(own: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        def gradient(whole: tf.Tensor) -> tf.Tensor:
            first = tf.reduce_sum(sizes[: context.replica_id_in_sync_group])
            total = context.all_reduce(tf.distribute.ReduceOp.SUM, whole)
            return total[first : first + sizes[context.replica_id_in_sync_group]]

        # On workers TensorFlow asks a tensor for its device, which an argument of a function does not have. And without
        # stop_gradient it would look for the gradient in the other replicas' graphs.
        return context.all_gather(tf.stop_gradient(own), axis=0), gradient

    return tf.cast(gathered(tf.cast(tensor, dtype)), tensor.dtype)
