"""What the workers of a strategy know about each other: how many, who is the chief, and numbers on which to agree.

And about their replicas: which one is running, and the values that they return.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from mirrorkit._types import ConcreteFunction
from mirrorkit.cluster import task_name
from mirrorkit.errors import ClusterError

_PLACE = 96  # bytes of the name of a place in a message
_SMALL = 64  # numbers in the first message
_place = contextvars.ContextVar("place", default="a call of your own")


def num_workers(strategy: tf.distribute.Strategy) -> int:
    """Return how many processes train together under this strategy."""
    cluster = _cluster(strategy)
    return 1 if cluster is None else sum(cluster.num_tasks(job) for job in _training_jobs(cluster))


def input_context(strategy: tf.distribute.Strategy) -> tf.distribute.InputContext | None:
    """Return which part of the input this worker's replicas need; None under a strategy of one process."""
    workers = num_workers(strategy)
    if workers == 1:
        return None
    return tf.distribute.InputContext(workers, worker_index(strategy), strategy.num_replicas_in_sync)


def is_chief(strategy: tf.distribute.Strategy) -> bool:
    """Return whether this process is the one that writes: logs, checkpoints, the progress bar."""
    return worker_index(strategy) == 0


def worker_index(strategy: tf.distribute.Strategy) -> int:
    """Return this process's number among the workers, from 0; a chief that is a separate task is number 0."""
    cluster = _cluster(strategy)
    if cluster is None:
        return 0
    resolver = strategy.cluster_resolver
    before = 1 if resolver.task_type == "worker" and "chief" in cluster.jobs else 0
    return before + resolver.task_id


def addresses(strategy: tf.distribute.Strategy) -> dict[str, str]:
    """Return "host:port" of every worker by its name, in their order; empty under a strategy of one process."""
    cluster = _cluster(strategy)
    if cluster is None:
        return {}
    return {task: address for job in _training_jobs(cluster) for task, address in task_addresses(strategy, job).items()}


def task_addresses(strategy: tf.distribute.Strategy, job: str) -> dict[str, str]:
    """Return "host:port" by name of all tasks of a job ("worker", "ps"), under a strategy with a cluster."""
    cluster = cluster_spec(strategy)
    return {task_name(job, i): cluster.task_address(job, i) for i in range(cluster.num_tasks(job))}


def cluster_spec(strategy: tf.distribute.Strategy) -> Any:
    """Return TensorFlow's description (`tf.train.ClusterSpec`) of the cluster that the strategy was made with.

    Under parameter servers the public `cluster_resolver` is None, and the resolver is in a private attribute.
    """
    return (strategy.cluster_resolver or strategy._cluster_resolver).cluster_spec()


def worker_name(strategy: tf.distribute.Strategy) -> str:
    """Return this process's name in messages: "chief", "worker 1"."""
    return list(addresses(strategy) or {"worker 0": ""})[worker_index(strategy)]


def replica_devices(strategy: tf.distribute.Strategy) -> list[str]:
    """Return the devices of this worker's replicas; for TensorFlow's default strategy the one that it computes on."""
    try:
        return list(strategy.extended.worker_devices)
    except RuntimeError:  # the default strategy has no list
        found = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
        return [found[0].name]


def local_replica(strategy: tf.distribute.Strategy) -> int:
    """Return which of this worker's replicas is running; call it in replica context."""
    replica = tf.distribute.get_replica_context().replica_id_in_sync_group
    return int(tf.get_static_value(replica)) % len(replica_devices(strategy))


def first_replica(strategy: tf.distribute.Strategy, values: Any) -> Any:
    """Take the first replica's part of each value in a nest that `strategy.run` returned."""
    return tf.nest.map_structure(lambda value: strategy.experimental_local_results(value)[0], values)


def of_all_workers(strategy: tf.distribute.Strategy, value: float) -> list[float]:
    """Return the values of all workers in their order, the chief's first; float64.

    Collective: every worker must call it, and waits for the others (2 ms where they are on one machine). `[0]` of it
    is a number that the chief decided, `max` of it says whether any worker wants to stop.

    Raises:
        ClusterError: another worker calls something else that all must call, such as `Loop.evaluate`.
    """
    return [float(v) for v in arrays_of_all_workers(strategy, np.array(value, np.float64))]


def arrays_of_all_workers(strategy: tf.distribute.Strategy, value: np.ndarray) -> np.ndarray:
    """Return the arrays of all workers, of one shape, in their order; float64. Collective, as `of_all_workers`.

    The first message has one size whatever is sent, and says at which `place` of the program a worker is.

    Raises:
        ClusterError: the workers are at different places, or send arrays of different sizes.
    """
    workers = num_workers(strategy)
    if workers == 1:
        return np.array(value, np.float64)[np.newaxis]
    flat = value.ravel()
    text = _place.get().encode()[:_PLACE].ljust(_PLACE, b"\0")
    head = [flat.size, zlib.crc32(_place.get().encode()), *np.frombuffer(text, np.uint32)]
    first = _exchanged(strategy, np.concatenate([head, flat[: _SMALL - len(head)]]), _SMALL)
    heads, found = np.split(first, [len(head)], axis=1)
    if (heads != heads[0]).any():
        raise ClusterError(_at_different_places(strategy, heads))
    if flat.size > found.shape[1]:
        size = _SMALL  # few different ones, since each is traced
        while size < flat.size:
            size *= 4
        found = _exchanged(strategy, flat, size)
    return found[:, : flat.size].reshape((workers, *value.shape))


def each_worker(strategy: tf.distribute.Strategy, value: tf.Tensor) -> tf.Tensor:
    """Return each worker's boolean, bool [workers], on the host; within a compiled function. Collective."""
    if num_workers(strategy) == 1:
        return value[tf.newaxis]
    own = tf.one_hot(worker_index(strategy), num_workers(strategy)) * tf.cast(value, tf.float32)
    return sum_over_workers(strategy, own) > 0


def sum_over_workers(strategy: Any, value: tf.Tensor) -> tf.Tensor:
    """Return the sum of the workers' tensors, of one shape; within a compiled function. Collective."""
    replicas_here = strategy.num_replicas_in_sync // num_workers(strategy)

    def on_replica(value: tf.Tensor) -> tf.Tensor:
        context = tf.distribute.get_replica_context()
        counts = context.replica_id_in_sync_group % replicas_here == 0  # once for each worker
        return context.all_reduce(tf.distribute.ReduceOp.SUM, tf.where(counts, value, tf.zeros_like(value)))

    return strategy.experimental_local_results(strategy.run(on_replica, args=(value,)))[0]


@contextlib.contextmanager
def place(name: str) -> Iterator[None]:
    """Name this part of the program, as workers that are at another one see it: "Loop.evaluate"."""
    before = _place.set(name)
    try:
        yield
    finally:
        _place.reset(before)


def by_worker(strategy: tf.distribute.Strategy, values: Sequence[str]) -> str:
    """Say who has which: "0.5 on worker 1 and 0.9 on worker 0, worker 2"."""
    names = list(addresses(strategy))
    groups = {value: [n for n, v in zip(names, values, strict=True) if v == value] for value in dict.fromkeys(values)}
    return " and ".join(f"{value} on {', '.join(of_value)}" for value, of_value in groups.items())


def _at_different_places(strategy: tf.distribute.Strategy, heads: np.ndarray) -> str:
    places = [bytes(head[2:].astype(np.uint32)).rstrip(b"\0").decode(errors="replace") for head in heads]
    if len(set(places)) == 1:
        places = [f"{name} with {int(head[0])} numbers to compare" for name, head in zip(places, heads, strict=True)]
    return (
        f"The workers are not at the same place of the program: {by_worker(strategy, places)}. What all of them take "
        "part in (fit, evaluate, predict, warm_up, export, wait_for_all, of_all_workers) all must call, in the same "
        "order, not the chief alone."
    )


def _exchanged(strategy: tf.distribute.Strategy, own: np.ndarray, size: int) -> np.ndarray:
    every = np.zeros((num_workers(strategy), size))
    every[worker_index(strategy), : own.size] = own
    found: np.ndarray = _sum_over_workers(strategy, size)(tf.constant(every)).numpy()
    return found


@functools.cache
def _sum_over_workers(strategy: Any, size: int) -> ConcreteFunction:
    """Return what adds up tensors [workers, size]; a collective operation keeps the shape that it had first."""
    add = tf.function(functools.partial(sum_over_workers, strategy), autograph=False)
    return add.get_concrete_function(tf.TensorSpec([num_workers(strategy), size], tf.float64))


def _cluster(strategy: tf.distribute.Strategy) -> Any:
    """Return the description of a cluster in which all train in step; None under a strategy of one process."""
    return cluster_spec(strategy) or None if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy) else None


def _training_jobs(cluster: Any) -> list[str]:
    return [job for job in ("chief", "worker") if job in cluster.jobs]
