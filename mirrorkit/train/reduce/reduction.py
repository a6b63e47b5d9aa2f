"""The one reduction of a step: the sums of all replicas, packed into few messages instead of one per variable."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterator, Sequence

import tensorflow as tf

from mirrorkit._types import Sums
from mirrorkit.errors import StepError
from mirrorkit.strategy import gathers, local_replica, replica_devices
from mirrorkit.train.ambient import ambient, switching

# Small models send one message; big ones several, which overlap with the backward pass. On CPUs a message is a copy in
# memory, and small ones need less of it in no more time (32 MiB measured beside 8). Not measured on GPUs.
_SIZE, _SIZE_ON_CPUS = 32 * 2**20, 8 * 2**20
# In bytes: up to this size a message is gathered. Every worker gets those of all and adds them up itself, in n - 1 hops
# of n workers; a ring takes twice as many, with less in each. On 2, 3 and 4 workers of one machine gathering took 0.5
# to 0.8 of the ring's time up to 256 KiB, and as long or longer from 1 MB on (examples/benchmarks/all_reduce.py).
_SHORT = 256 * 2**10
_GATHERED = (tf.float16, tf.float32, tf.float64)  # TensorFlow gathers no bfloat16
_GROUP = 2**20  # far from the numbers that TensorFlow gives to its own groups, which count from 1
_places: weakref.WeakKeyDictionary[tf.Graph, Iterator[int]] = weakref.WeakKeyDictionary()  # of the gathers in a graph


@ambient.set(alone=False)
def all_reduce(sums: Sums) -> Sums:
    """Sum a nest of float tensors over all replicas; call it in replica context.

    ```python
    sums = strategy.run(lambda: mk.train.all_reduce({"rows": tf.constant(32.0)}))
    print([float(rows) for rows in strategy.experimental_local_results(sums["rows"])])  # [64.0, 64.0]
    ```

    Every replica must call it equally often, in the same order, with the same shapes and dtypes. The tensors are sent
    in messages of 8 MiB on CPUs and 32 elsewhere. Small models fit into one; with large ones, the first messages are
    sent while the backward pass still computes the others.

    Args:
        sums: tensors of static shape.
    """
    if tf.distribute.get_replica_context().num_replicas_in_sync == 1:
        return sums
    flat, strategy = tf.nest.flatten(sums), tf.distribute.get_strategy()
    size = message_size(replica_devices(strategy)[local_replica(strategy)])
    # Each by itself: of a list TensorFlow would make one message again, which waits until the last gradient is there.
    messages = [_sum(message) for message in pack(flat, size)]
    return tf.nest.pack_sequence_as(sums, unpack(messages, flat, size))


def _sum(message: tf.Tensor) -> tf.Tensor:
    context = tf.distribute.get_replica_context()
    size = message.shape.num_elements() * message.dtype.size
    if size == 0:  # TensorFlow's ring would end in a crash of the process
        return message
    if size <= _SHORT and message.dtype in _GATHERED and gathers(context.strategy):
        return _gather(message)
    with switching():  # TensorFlow asks on which device the message lies, which the caller's own tensor may not say
        return context.all_reduce(tf.distribute.ReduceOp.SUM, tf.identity(message))


@tf.custom_gradient  # type: ignore[untyped-decorator, unused-ignore]
def _gather(message: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
    """Sum by a gather, in the same order on every worker, so that all have the same bits; the gradient is a sum too."""
    workers = tf.distribute.get_replica_context().num_replicas_in_sync
    gathered = tf.raw_ops.CollectiveGatherV2(
        input=message, group_size=workers, group_key=_GROUP, instance_key=_instance_key(message), ordering_token=[]
    )
    return tf.add_n(tf.unstack(tf.reshape(gathered, [workers, *message.shape]))), _gather


def _instance_key(message: tf.Tensor) -> int:
    """Return the number by which the workers' gathers find each other, of 31 bits.

    It follows from the message and from its place among the gathers of its graph. A number that counts the traces of
    the process would not do: a worker that traces a function once more than the others would wait forever.
    """
    place = 0
    if not tf.executing_eagerly():
        place = next(_places.setdefault(tf.compat.v1.get_default_graph(), itertools.count(1)))
    elements: int = message.shape.num_elements() - 1  # 18 bits
    return (place % 2**11) << 20 | _GATHERED.index(message.dtype) << 18 | elements


def message_size(device: str) -> int:
    """Return the size of a message in bytes for the device of a replica."""
    return _SIZE_ON_CPUS if "CPU" in device else _SIZE


def pack(tensors: Sequence[tf.Tensor], size: int = _SIZE) -> list[tf.Tensor]:
    """Concatenate tensors of static shape into flat buckets of at most `size` bytes (a larger tensor has its own).

    They hold floating-point numbers; neighbours of the same dtype share a bucket.
    """
    for tensor in tensors:
        if not (tensor.shape.is_fully_defined() and tensor.dtype.is_floating):
            raise StepError(
                f"Sums over replicas must be floating tensors of static shape; found {tensor.dtype.name} of shape "
                f"{tensor.shape}. Reduce the batch dimension away, use tf.ensure_shape, or tf.cast to float32."
            )
    buckets = []
    for members in _buckets(tensors, size):
        parts = [_shaped(tensor, [-1]) for tensor in members]
        buckets.append(tf.concat(parts, 0) if len(parts) > 1 else parts[0])
    return buckets


def unpack(buckets: Sequence[tf.Tensor], like: Sequence[tf.Tensor], size: int = _SIZE) -> list[tf.Tensor]:
    """Undo `pack`: the values of `buckets` in the shapes of `like`."""
    tensors = []
    for flat, members in zip(buckets, _buckets(like, size), strict=True):
        parts = tf.split(flat, [t.shape.num_elements() for t in members]) if len(members) > 1 else [flat]
        tensors += [_shaped(part, t.shape) for part, t in zip(parts, members, strict=True)]
    return tensors


def _shaped(tensor: tf.Tensor, shape: Sequence[int]) -> tf.Tensor:
    """Reshape where that changes anything: the first step traces and optimizes every operation, on each replica."""
    return tensor if tensor.shape.rank == len(shape) == 1 else tf.reshape(tensor, shape)


def _buckets(tensors: Sequence[tf.Tensor], bucket_bytes: int) -> list[list[tf.Tensor]]:
    buckets: list[list[tf.Tensor]] = []
    room = 0
    for tensor in tensors:
        size = tensor.shape.num_elements() * tensor.dtype.size
        if not buckets or tensor.dtype != buckets[-1][0].dtype or size > room:
            buckets.append([])
            room = bucket_bytes
        buckets[-1].append(tensor)
        room -= size
    return buckets
