"""Rows of all replicas in one tensor, with their gradient."""

from __future__ import annotations

import itertools
import weakref
import zlib
from collections.abc import Callable, Iterator

import tensorflow as tf

from mirrorkit._types import Nest
from mirrorkit.errors import StepError
from mirrorkit.train.ambient import ambient, switching

Gather = Callable[[Nest], Nest]  # from a replica's rows to those of all

_GATHERED = (tf.float16, tf.float32, tf.float64, tf.int32, tf.int64)  # by TensorFlow, on several workers
_AS = {tf.bfloat16: tf.float32} | dict.fromkeys((tf.bool, tf.uint8, tf.int8, tf.uint16, tf.int16), tf.int32)
_GROUP = 2**20 + 1  # far from the numbers that TensorFlow gives to its own groups, and another than of `all_reduce`
_places: weakref.WeakKeyDictionary[tf.Graph, dict[int, Iterator[int]]] = weakref.WeakKeyDictionary()


def all_gather(rows: Nest) -> Nest:
    """Return the rows of all replicas in the order of the global batch, with their gradient; in replica context.

    ```python
    def loss_fn(batch):                                        # of Step.from_loss(..., whole_batch=True)
        codes = encoder(batch)                                 # this replica's, [rows, 64]
        similar = codes @ tf.transpose(mk.train.all_gather(codes))   # with those of the whole batch, [rows, batch]
    ```

    The gradient is that of one device: gradients from every replica's loss flow back to the replica that has the row.
    On one replica, in cross-replica context and on parameter servers, where a worker has whole batches, rows are
    returned as they are.

    It may be called in the `loss_fn` of `Step.from_loss(..., whole_batch=True)` and in layers that this calls, in a
    step of your own, and in a function that `strategy.run` calls. Every replica must call it equally often, in the same
    order.

    Args:
        rows: a tensor, or a nest of tensors, such as embeddings [rows, ...] and labels [rows]. Replicas may have
            different numbers of rows, also none.

    Returns:
        The same nest, with the same dtypes and shapes except for the first dimension.

    Raises:
        StepError: a `mk.train.Step` that would not see other replicas' rows calls it; or a tensor has no rows, or a
            dtype that cannot be gathered.
    """
    rows = tf.nest.map_structure(tf.convert_to_tensor, rows)
    shapes = [tensor.shape for tensor in tf.nest.flatten(rows)]
    if not shapes or any(shape.rank in (0, None) for shape in shapes):
        raise StepError(
            f"mk.train.all_gather takes tensors [rows, ...]; found shapes [{', '.join(map(str, shapes))}]. Add up "
            "scalars with mk.train.all_reduce."
        )
    return (ambient.gather or rows_of_all)(rows)


@ambient.set(alone=False)
def rows_of_all(rows: Nest, is_all: bool | tf.Tensor = False) -> Nest:
    """Return the rows of all replicas; the own ones where `is_all` says that every replica has all of them."""
    context = tf.distribute.get_replica_context()
    if is_all is True or context is None or context.num_replicas_in_sync == 1:
        return rows
    flat = tf.nest.flatten(rows)
    sizes = gather_sizes(tf.stack([tf.shape(tensor)[0] for tensor in flat]))
    every = [_gather(tensor, sizes[:, number], is_all) for number, tensor in enumerate(flat)]
    return tf.nest.pack_sequence_as(rows, every)


@ambient.set(alone=False)
def gather_rows(rows: Nest, sizes: tf.Tensor) -> Nest:
    """Put the rows of all replicas together, in the order of the replicas; in replica context.

    The gradient for a replica's rows is the sum of those that all replicas have for them.

    Args:
        rows: a nest of tensors of one number of rows, which may be 0 and differ between replicas.
        sizes: the numbers of rows of all replicas, [replicas], int64.
    """
    return tf.nest.map_structure(lambda tensor: _gather(tensor, sizes, False), rows)


@ambient.set(alone=False)
def gather_sizes(size: tf.Tensor) -> tf.Tensor:
    """Return the numbers of all replicas, [replicas], or [replicas, n] of n numbers, int64; in replica context."""
    own = tf.identity(tf.cast(size, tf.int64))[tf.newaxis]
    with switching():
        return tf.distribute.get_replica_context().all_gather(own, axis=0)


def _gather(tensor: tf.Tensor, sizes: tf.Tensor, is_all: bool | tf.Tensor) -> tf.Tensor:
    context = tf.distribute.get_replica_context()
    dtype = tensor.dtype if tensor.dtype in _GATHERED else _AS.get(tensor.dtype)
    if dtype is None:
        raise StepError(
            f"TensorFlow cannot gather rows of dtype {tensor.dtype.name} from all replicas. Cast them to float32 or "
            "int64 before."
        )

    @tf.custom_gradient  # type: ignore[untyped-decorator, unused-ignore]
    def gathered(own: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        replica = context.replica_id_in_sync_group

        def gradient(whole: tf.Tensor) -> tf.Tensor:
            first = tf.reduce_sum(sizes[:replica])
            total = _sum(whole)
            if is_all is not False:  # each copy is alone, and its gradient one of N
                first, total = tf.where(is_all, tf.zeros_like(first), first), tf.where(is_all, whole, total)
            return total[first : first + sizes[replica]]

        # On workers TensorFlow asks a tensor for its device, which an argument of a function does not have. And without
        # stop_gradient it would look for the gradient in the other replicas' graphs.
        whole = _concat(tf.stop_gradient(own), sizes)
        if is_all is not False:
            whole = whole[: tf.where(is_all, sizes[0], tf.reduce_sum(sizes))]
        return whole, gradient

    return tf.cast(gathered(tf.cast(tensor, dtype)), tensor.dtype)


def _concat(own: tf.Tensor, sizes: tf.Tensor) -> tf.Tensor:
    context = tf.distribute.get_replica_context()
    if not _by_size():
        with switching():
            return context.all_gather(own, axis=0)
    longest = tf.maximum(tf.reduce_max(sizes), 1)  # TensorFlow's ring would crash on a message without numbers
    message = tf.pad(own, [[0, longest - sizes[context.replica_id_in_sync_group]], *[[0, 0]] * (own.shape.rank - 1)])
    if message.shape[1:].num_elements() == 0:
        return tf.zeros([tf.reduce_sum(sizes), *message.shape[1:]], message.dtype)
    gathered = tf.raw_ops.CollectiveGatherV2(
        input=message,
        group_size=context.num_replicas_in_sync,
        group_key=_GROUP,
        instance_key=_instance_key("gather", message),
        ordering_token=[],
    )
    firsts = [replica * longest for replica in range(context.num_replicas_in_sync)]
    return tf.concat([gathered[first : first + sizes[i]] for i, first in enumerate(firsts)], axis=0)


@ambient.set(alone=False)  # a gradient is taken outside of what gathered
def _sum(whole: tf.Tensor) -> tf.Tensor:
    context = tf.distribute.get_replica_context()
    if not _by_size():
        with switching():
            return context.all_reduce(tf.distribute.ReduceOp.SUM, whole)
    if whole.shape[1:].num_elements() == 0:
        return whole
    rows = tf.shape(whole)[0]
    message = tf.pad(whole, [[0, tf.cast(rows == 0, tf.int32)], *[[0, 0]] * (whole.shape.rank - 1)])
    total = tf.raw_ops.CollectiveReduceV2(
        input=message,
        group_size=context.num_replicas_in_sync,
        group_key=_GROUP,
        instance_key=_instance_key("sum", message),
        ordering_token=[],
        merge_op="Add",
        final_op="Id",
    )
    return total[:rows]


def _by_size() -> bool:
    """Whether messages need a number of their own for each size.

    A collective of workers keeps the shape that it had first, so in a loop of steps TensorFlow's fail at a smaller
    batch. On GPUs they also keep an order, so there they are taken as they are.
    """
    context = tf.distribute.get_replica_context()
    is_of_workers = isinstance(context.strategy, tf.distribute.MultiWorkerMirroredStrategy)
    return is_of_workers and "GPU" not in "".join(context.strategy.extended.worker_devices)


def _instance_key(what: str, message: tf.Tensor) -> tf.Tensor:
    """Return the number by which the replicas' messages of one shape find each other, of 31 bits.

    It follows from the message, with its size when it is sent, and from its place among the messages of its graph.
    """
    place = 0
    if not tf.executing_eagerly():
        replica = int(tf.get_static_value(tf.distribute.get_replica_context().replica_id_in_sync_group))
        of_graph = _places.setdefault(tf.compat.v1.get_default_graph(), {})
        place = next(of_graph.setdefault(replica, itertools.count(1)))
    kind = zlib.crc32(f"{what} {message.dtype.name} {message.shape[1:]}".encode())
    return place % 2**8 << 23 | tf.cast((kind + tf.size(message, tf.int64)) % 2**23, tf.int32)
