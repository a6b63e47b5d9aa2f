"""What is checked before a worker joins the others; real workers are in tests/multiworker."""

from __future__ import annotations

import re
import sys

import numpy as np
import pytest
import tensorflow as tf

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.cluster import free_ports
from mirrorkit.errors import ClusterError, StrategyError
from mirrorkit.launch import layout
from mirrorkit.strategy import multi_worker
from mirrorkit.variables import given

WORKERS = mk.cluster.Cluster(workers=("a:1", "b:1"))


def test_a_worker_that_never_comes_is_named():
    cluster = layout.clusters(2)["worker 0"]
    with pytest.raises(ClusterError, match=re.escape(f"worker 1 ({cluster.workers[1]}) did not start")):
        mk.strategy.create("multi_worker", cluster=cluster, start_timeout=0.5)


def test_a_strategy_after_the_start_of_tensorflow_is_an_error_that_says_what_to_move(monkeypatch):
    """The text of TensorFlow's error is matched: this fails when it changes. TensorFlow runs in this process."""
    monkeypatch.setattr(multi_worker, "_joined", [])
    tf.constant(0)
    alone = mk.cluster.Cluster(workers=(f"127.0.0.1:{free_ports(1)[0]}",))
    with pytest.raises(StrategyError, match=r"Move mk\.strategy\.create"):
        mk.strategy.create("multi_worker", cluster=alone, devices="cpu")
    with pytest.raises(StrategyError, match="already made the strategy"):
        mk.strategy.create("multi_worker", cluster=alone, devices="cpu")


def test_only_a_strategy_made_to_gather_does(strategy_of):
    assert not multi_worker.gathers(strategy_of("mirrored", 2))
    assert multi_worker.gathers(object.__new__(multi_worker._GatheringStrategy))
    assert not multi_worker.gathers(object.__new__(tf.distribute.MultiWorkerMirroredStrategy))


def test_workers_must_agree_on_versions_gpus_and_communication(monkeypatch):
    agreed = {}

    def wait_for_all(cluster, *, timeout, must_agree):
        agreed.update(must_agree)
        raise ClusterError("far enough")

    monkeypatch.setattr(multi_worker, "require_network", lambda cluster, timeout: None)
    monkeypatch.setattr(multi_worker, "wait_for_all", wait_for_all)
    with pytest.raises(ClusterError, match="far enough"):
        mk.strategy.create("multi_worker", cluster=WORKERS, devices="cpu", communication="ring")
    versions = {"mirrorkit": mk.__version__, "TensorFlow": tf.__version__, "Keras": keras.__version__}
    versions |= {"NumPy": np.__version__, "Python": ".".join(map(str, sys.version_info[:2]))}
    assert agreed == {**versions, "GPUs per worker": 0, "communication": "ring"}


class _Worker1:
    cluster_resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({"worker": ["a:1", "b:1"]}), task_type="worker", task_id=1
    )


@pytest.mark.parametrize(("task", "own", "other"), [(1, "[8,9]", "[8,8]"), (0, "[8,8]", "[8,9]")])
def test_a_variable_of_another_shape_is_named_with_both_shapes(monkeypatch, task, own, other):
    """TensorFlow names the worker whose message came last; real ones are in tests/multiworker."""
    text = (
        f"Shape mismatch in the collective instance 100. Op at device /job:worker/replica:0/task:{task}/device:CPU:0 "
        "expected shape [8,9] but another member in the group expected shape [8,8]. This is likely due to"
    )

    def create(**options):
        raise tf.errors.InternalError(None, None, text)

    monkeypatch.setattr(multi_worker, "worker_name", lambda strategy: "worker 1")
    scope = multi_worker._NamingScope(_Worker1(), tf.name_scope("dense"))
    with scope, pytest.raises(StrategyError, match=rf"worker 1 .*'dense/kernel' .*\{own[:-1]}") as error:
        scope._create(create, name="kernel")
    assert f"another worker creates one of shape {other}" in str(error.value)


def test_the_scope_remembers_which_number_a_script_gave():
    scope = multi_worker._NamingScope(_Worker1(), tf.name_scope("optimizer"))
    with scope, scope:
        rate, kernel = (
            keras.Variable(0.25, name="rate"),
            keras.Variable(lambda shape, dtype: tf.zeros(shape), shape=(2,)),
        )
    assert (given(rate), given(kernel), given(keras.Variable(0.25))) == (0.25, None, None)
