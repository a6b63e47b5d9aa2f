"""What a strategy says of its workers, what is checked before one joins, and the name of a lost one."""

from __future__ import annotations

import mmap
import re
import sys
import traceback
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.cluster import free_ports
from mirrorkit.errors import ClusterError, StrategyError
from mirrorkit.launch import layout
from mirrorkit.strategy import lost, multi_worker, workers
from mirrorkit.variables import given


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


# --- what is checked before a worker joins the others; real workers are in tests/multiworker


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


# --- naming lost workers from TensorFlow's errors; workers that are really lost are in tests/multiworker


SILENT = (
    "The following tasks are unhealthy (stopped sending heartbeats):\n/job:worker/replica:0/task:1\n"
    "The tasks have crashed. Additional GRPC error information from remote target /job:worker/replica:0/task:0: ..."
)


@pytest.fixture
def listening(monkeypatch):
    """The workers that listen, of three; this process is worker 0."""
    addresses = {f"worker {i}": f"127.0.0.1:{port}" for i, port in enumerate(free_ports(3))}
    monkeypatch.setattr(lost, "addresses", lambda strategy: addresses)
    monkeypatch.setattr(lost, "worker_name", lambda strategy: "worker 0")
    monkeypatch.setattr(lost, "_SECONDS_TO_EXIT", 0.0)
    there = set(addresses)
    monkeypatch.setattr(lost, "unreachable", lambda others: [task for task in others if task not in there])
    return there


def fail_with(error, strategy=None):
    with mk.strategy.naming_lost_workers(strategy):
        raise error


def test_a_worker_that_does_not_listen_is_gone(listening):
    listening.remove("worker 2")
    with pytest.raises(ClusterError, match=r"^worker 2 \(127\.0\.0\.1:\d+\) is gone"):
        fail_with(tf.errors.InternalError(None, None, "NCCL"))


@pytest.mark.parametrize("kind", [tf.errors.UnavailableError, tf.errors.InternalError])
def test_a_closed_connection_adds_no_lines_to_a_worker_that_is_gone(listening, kind):
    listening.remove("worker 1")
    error = kind(None, None, "Socket closed")
    with pytest.raises(ClusterError) as caught:
        fail_with(error)
    printed = "".join(traceback.format_exception(caught.value))
    assert ("Socket closed" in printed) is (kind is tf.errors.InternalError)


def test_a_worker_without_heartbeats_has_stopped_answering(listening):
    with pytest.raises(ClusterError, match=r"^worker 1 \(127\.0\.0\.1:\d+\) has stopped answering"):
        fail_with(tf.errors.InternalError(None, None, SILENT))


@pytest.mark.usefixtures("listening")
def test_where_nobody_is_named_it_may_be_any_other_worker():
    with pytest.raises(ClusterError, match=r"^worker 1 \(.*\) or worker 2 \(.*\) has stopped answering"):
        fail_with(tf.errors.UnavailableError(None, None, "Socket closed"))


@pytest.mark.usefixtures("listening")
@pytest.mark.parametrize("error", [tf.errors.InternalError(None, None, "other"), ValueError("other")])
def test_other_errors_stay_as_they_are(error):
    with pytest.raises(type(error), match="other"):
        fail_with(error)


def test_in_one_process_nothing_changes(strategy_of):
    with pytest.raises(tf.errors.UnavailableError):
        fail_with(tf.errors.UnavailableError(None, None, "Socket closed"), strategy_of("mirrored", 2))


def test_tensorflow_still_says_it_in_these_words():
    """What `_SILENT` matches is text within one of TensorFlow's libraries: this fails when it changes."""
    folder = Path(tf.sysconfig.get_lib())
    libraries = [next(folder.glob(f"libtensorflow_{name}.*"), None) for name in ("framework", "cc")]
    assert any(_holds(library, lost._SILENT.encode()) for library in libraries if library)


def _holds(library, text):
    with open(library, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(text) > 0
