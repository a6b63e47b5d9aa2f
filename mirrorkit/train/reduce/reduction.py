"""The one reduction of a step: the sums of all replicas, packed into few messages."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterator, Sequence

import tensorflow as tf

from mirrorkit._types import Nest, Sums
from mirrorkit.strategy import gathers, local_replica, replica_devices
from mirrorkit.train.ambient import ambient, switching
from mirrorkit.train.reduce.packing import message_size, pack, unpack

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
    return tf.nest.pack_sequence_as(sums, _packed_sums(tf.nest.flatten(sums)))


@ambient.set(alone=False)
def all_reduce_by_device(sums: Sums, devices: Nest) -> Sums:
    """As `all_reduce`, each tensor on the device that `devices`, a nest like `sums`, names for it."""
    if tf.distribute.get_replica_context().num_replicas_in_sync == 1:
        return sums
    flat, names = tf.nest.flatten(sums), tf.nest.flatten(devices)
    results: dict[int, tf.Tensor] = {}
    for device in sorted(set(names)):
        places = [i for i, name in enumerate(names) if name == device]
        with tf.device(device):
            results.update(zip(places, _packed_sums([flat[i] for i in places]), strict=True))
    return tf.nest.pack_sequence_as(sums, [results[i] for i in range(len(flat))])


def _packed_sums(flat: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    strategy = tf.distribute.get_strategy()
    size = message_size(replica_devices(strategy)[local_replica(strategy)])
    # Each by itself: of a list TensorFlow would make one message again, which waits until the last gradient is there.
    messages = [_sum(message) for message in pack(flat, size)]
    return unpack(messages, flat, size)


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
