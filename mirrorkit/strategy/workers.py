"""What a strategy tells of its workers and their replicas: how many, who is the chief, which replica is running."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from mirrorkit import private
from mirrorkit.arguments import checks_arguments
from mirrorkit.cluster import task_name
from mirrorkit.errors import ArgumentError


@checks_arguments(ArgumentError)
def num_workers(strategy: tf.distribute.Strategy) -> int:
    """Return how many processes train together under this strategy.

    ```python
    print(mk.strategy.num_workers(strategy))  # 1
    ```
    """
    return max(1, len(addresses(strategy)))


def input_context(strategy: tf.distribute.Strategy) -> tf.distribute.InputContext | None:
    """Return which part of the input this worker's replicas need; None under a strategy of one process."""
    workers = num_workers(strategy)
    if workers == 1:
        return None
    return tf.distribute.InputContext(workers, worker_index(strategy), strategy.num_replicas_in_sync)


@checks_arguments(ArgumentError)
def is_chief(strategy: tf.distribute.Strategy) -> bool:
    """Return whether this process is the one that writes: logs, checkpoints, the progress bar.

    ```python
    if mk.strategy.is_chief(strategy):
        model.save("model.keras")
    ```
    """
    return worker_index(strategy) == 0


@checks_arguments(ArgumentError)
def worker_index(strategy: tf.distribute.Strategy) -> int:
    """Return this process's number among the workers, from 0; a chief that is a separate task is number 0.

    ```python
    print(f"worker {mk.strategy.worker_index(strategy)} of {mk.strategy.num_workers(strategy)}")  # worker 0 of 1
    ```
    """
    return list(addresses(strategy) or ["worker 0"]).index(worker_name(strategy))


def addresses(strategy: tf.distribute.Strategy) -> dict[str, str]:
    """Return "host:port" of every worker by its name, in their order; empty under a strategy of one process."""
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return {}
    return task_addresses(strategy, "chief") | task_addresses(strategy, "worker")


def task_addresses(strategy: tf.distribute.Strategy, job: str) -> dict[str, str]:
    """Return "host:port" by name of all tasks of a job ("worker", "ps"), under a strategy with a cluster."""
    resolver = strategy.cluster_resolver
    if resolver is None:  # as under parameter servers
        private.check(strategy=strategy)
        resolver = strategy._cluster_resolver
    of_job = resolver.cluster_spec().as_dict().get(job, ())
    return {task_name(job, i): address for i, address in enumerate(of_job)}


def worker_name(strategy: tf.distribute.Strategy) -> str:
    """Return this process's name in messages: "chief", "worker 1"."""
    if not addresses(strategy):
        return "worker 0"
    return task_name(strategy.cluster_resolver.task_type, strategy.cluster_resolver.task_id)


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


def by_replica(strategy: tf.distribute.Strategy, values: Any) -> list[Any]:
    """Return the nest of each of this worker's replicas, of what `strategy.run` returned."""
    parts = [strategy.experimental_local_results(value) for value in tf.nest.flatten(values)]
    return [tf.nest.pack_sequence_as(values, of_replica) for of_replica in zip(*parts, strict=True)]


def by_worker(strategy: tf.distribute.Strategy, values: Sequence[str]) -> str:
    """Say who has which: "0.5 on worker 1 and 0.9 on worker 0, worker 2"."""
    groups: dict[str, list[str]] = {}
    for name, value in zip(addresses(strategy), values, strict=True):
        groups.setdefault(value, []).append(name)
    return " and ".join(f"{value} on {', '.join(of_value)}" for value, of_value in groups.items())
