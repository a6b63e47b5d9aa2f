"""What the workers of a strategy know about each other: how many, who is the chief, and numbers on which to agree.

And about their replicas: which one is running, and the values that they return.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import tensorflow as tf

from mirrorkit._types import ConcreteFunction
from mirrorkit.cluster import task_name


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
    """
    return [float(v) for v in arrays_of_all_workers(strategy, np.array(value, np.float64))]


def arrays_of_all_workers(strategy: tf.distribute.Strategy, value: np.ndarray) -> np.ndarray:
    """Return the arrays of all workers, of one shape, in their order; float64. Collective, as `of_all_workers`."""
    workers = num_workers(strategy)
    if workers == 1:
        return np.array(value, np.float64)[np.newaxis]
    size = 1  # few different ones, since each is traced
    while size < value.size:
        size *= 4
    every = np.zeros((workers, size))
    every[worker_index(strategy), : value.size] = value.ravel()
    found: np.ndarray = _sum_over_workers(strategy, size)(tf.constant(every)).numpy()
    return found[:, : value.size].reshape((workers, *value.shape))


@functools.cache
def _sum_over_workers(strategy: Any, size: int) -> ConcreteFunction:
    """Return what adds up tensors [workers, size]; a collective operation keeps the shape that it had first."""
    add = tf.function(functools.partial(_summed, strategy), autograph=False)
    return add.get_concrete_function(tf.TensorSpec([num_workers(strategy), size], tf.float64))


def _summed(strategy: Any, value: tf.Tensor) -> tf.Tensor:
    replicas_here = strategy.num_replicas_in_sync // num_workers(strategy)

    def on_replica(value: tf.Tensor) -> tf.Tensor:
        context = tf.distribute.get_replica_context()
        counts = context.replica_id_in_sync_group % replicas_here == 0  # once for each worker
        return context.all_reduce(tf.distribute.ReduceOp.SUM, tf.where(counts, value, tf.zeros_like(value)))

    return strategy.experimental_local_results(strategy.run(on_replica, args=(value,)))[0]


def _cluster(strategy: tf.distribute.Strategy) -> Any:
    """Return the description of a cluster in which all train in step; None under a strategy of one process."""
    return cluster_spec(strategy) or None if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy) else None


def _training_jobs(cluster: Any) -> list[str]:
    return [job for job in ("chief", "worker") if job in cluster.jobs]
