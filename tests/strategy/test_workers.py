from __future__ import annotations

from types import SimpleNamespace

import tensorflow as tf

import mirrorkit as mk
from mirrorkit.strategy import workers


def test_one_process_has_one_worker_and_is_its_chief(strategy_of):
    for strategy in (strategy_of("mirrored", 2), tf.distribute.get_strategy()):
        assert mk.strategy.num_workers(strategy) == 1
        assert mk.strategy.worker_index(strategy) == 0
        assert mk.strategy.is_chief(strategy)
        assert mk.strategy.of_all_workers(strategy, 7) == [7.0]
        mk.strategy.wait_for_all(strategy, "nobody else")


def test_the_devices_of_this_workers_replicas(strategy_of):
    for strategy, names in (
        (strategy_of("mirrored", 2), ["CPU:0", "CPU:1"]),
        (tf.distribute.get_strategy(), ["CPU:0"]),
    ):
        assert [name.rpartition("device:")[2] for name in workers.replica_devices(strategy)] == names
    with strategy_of("mirrored", 2).scope():
        assert len(workers.replica_devices(strategy)) == 1


def test_the_tasks_of_a_job_have_names_and_addresses():
    spec = tf.train.ClusterSpec({"chief": ["a:1"], "worker": ["b:1", "c:2"]})
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(spec)
    public = SimpleNamespace(cluster_resolver=resolver)
    private = SimpleNamespace(cluster_resolver=None, _cluster_resolver=resolver)  # as under parameter servers
    for strategy in (public, private):
        assert workers.task_addresses(strategy, "worker") == {"worker 0": "b:1", "worker 1": "c:2"}
        assert workers.task_addresses(strategy, "chief") == {"chief": "a:1"}
