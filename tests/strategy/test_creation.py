from __future__ import annotations

import json
import logging

import pytest
import tensorflow as tf

import mirrorkit as mk
from mirrorkit.errors import ClusterError, DeviceError, StrategyError
from mirrorkit.strategy import creation

KINDS = [
    ("one_device", 1, "OneDeviceStrategy"),
    ("mirrored", 1, "MirroredStrategy"),
    ("mirrored", 2, "MirroredStrategy"),
    ("mirrored", 4, "MirroredStrategy"),
    ("central_storage", 1, "CentralStorageStrategy"),
    ("central_storage", 2, "CentralStorageStrategy"),
    ("auto", 4, "MirroredStrategy"),
    ("auto", 1, "OneDeviceStrategy"),
]


@pytest.fixture(autouse=True)
def _alone(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)


@pytest.mark.parametrize(("kind", "replicas", "class_name"), KINDS)
def test_every_replica_computes_on_its_own_device(strategy_of, kind, replicas, class_name):
    strategy = strategy_of(kind, replicas)
    assert type(strategy).__name__ == class_name
    values = strategy.experimental_local_results(strategy.run(lambda: tf.identity(tf.constant(1.0))))
    assert [value.device.rpartition("device:")[2] for value in values] == [f"CPU:{i}" for i in range(replicas)]


def test_central_storage_keeps_one_copy_of_a_variable(strategy_of):
    strategy = strategy_of("central_storage", 2)
    with strategy.scope():
        variable = tf.Variable(1.0)
    assert len({v.device for v in strategy.experimental_local_results(variable)}) == 1
    assert variable.device.endswith("CPU:0")


def test_create_logs_one_line_with_the_reason(caplog):
    with caplog.at_level(logging.INFO, logger="mirrorkit"):
        strategy = mk.strategy.create("auto", devices="cpu:2")
    lines = [
        record.getMessage() for record in caplog.records if (record.name, record.levelname) == ("mirrorkit", "INFO")
    ]
    assert len(lines) == 1
    assert "'auto' took 'mirrored' for 2 devices" in lines[0]
    assert mk.strategy.describe(strategy) in lines[0]


@pytest.mark.parametrize("left_off", [True, False])
def test_create_says_once_how_to_make_a_cpu_faster(monkeypatch, caplog, left_off):
    monkeypatch.setattr(creation.onednn, "left_off", lambda: left_off)
    creation._warn_of_slow_cpu.cache_clear()
    for _ in range(2):
        mk.strategy.create("mirrored", devices="cpu:2")
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == left_off
    assert all("set TF_ENABLE_ONEDNN_OPTS=1" in warning for warning in warnings)


def test_describe_names_class_replicas_and_devices(strategy_of):
    assert mk.strategy.describe(strategy_of("mirrored", 2)) == "MirroredStrategy, 2 replicas on CPU:0 CPU:1"
    assert mk.strategy.describe(strategy_of("one_device", 1)) == "OneDeviceStrategy, 1 replica on CPU:0"
    assert mk.strategy.describe(tf.distribute.get_strategy()) == "DefaultDistributionStrategy, 1 replica on CPU:0"


def test_unknown_kind_names_the_known_ones():
    with pytest.raises(StrategyError, match=r"'horovod'.*'auto', 'one_device', 'mirrored'"):
        mk.strategy.create("horovod")


@pytest.mark.skipif(bool(tf.config.list_physical_devices("GPU")), reason="this machine has a GPU")
@pytest.mark.parametrize(("devices", "asked"), [(4, "4 GPUs were"), ("gpu", "All GPUs were"), ("gpu:1", "1 GPU was")])
def test_missing_gpus_say_what_there_is_and_how_to_rehearse(devices, asked):
    with pytest.raises(DeviceError, match=rf"{asked} asked for, 0 found: none.*devices='cpu:\d'"):
        mk.strategy.create("mirrored", devices=devices)


def test_one_device_refuses_several():
    with pytest.raises(StrategyError, match=r"2 devices.*'mirrored'"):
        mk.strategy.create("one_device", devices="cpu:2")


CLUSTER = {"worker": ["a:1", "b:1"]}


def tf_config(cluster, task="worker"):
    return json.dumps({"cluster": cluster, "task": {"type": task, "index": 0}})


@pytest.mark.parametrize("kind", ["mirrored", "central_storage"])
@pytest.mark.parametrize("cluster", [CLUSTER, {"chief": ["a:1"], "worker": ["b:1"]}])
def test_one_machine_kinds_refuse_a_cluster_of_several_workers(monkeypatch, kind, cluster):
    monkeypatch.setenv("TF_CONFIG", tf_config(cluster))
    with pytest.raises(StrategyError, match=r"2 workers.*unrelated model"):
        mk.strategy.create(kind, devices="cpu:2")


@pytest.mark.parametrize(
    ("cluster", "kind"),
    [(CLUSTER, "multi_worker"), ({"chief": ["a:1"], "worker": ["b:1"], "ps": ["c:1"]}, "parameter_server")],
)
def test_auto_takes_the_cluster_before_the_devices(monkeypatch, cluster, kind):
    monkeypatch.setenv("TF_CONFIG", tf_config(cluster))
    with pytest.raises(StrategyError, match=rf"devices='cpu:2' was asked for.* '{kind}'"):
        mk.strategy.create("auto", devices="cpu:2")


@pytest.mark.parametrize("others", [{}, {"chief": "localhost:1026", "ps": ("localhost:1027",)}], ids=["", "ps"])
def test_hosts_without_address_are_named_before_tensorflow_starts(others):
    cluster = mk.cluster.Cluster(workers=("localhost:1025", "no-such-host.invalid:1"), **others)
    with pytest.raises(ClusterError, match=r"within 0.2 s for 'no-such-host.invalid' \(worker 1\)"):
        mk.strategy.create("auto", cluster=cluster, start_timeout=0.2)


@pytest.mark.parametrize("config", [tf_config({"worker": ["a:1"]}), tf_config(CLUSTER, task="evaluator"), "{}"])
def test_a_lone_worker_or_an_evaluator_may_mirror(monkeypatch, config):
    monkeypatch.setenv("TF_CONFIG", config)
    assert mk.strategy.create("mirrored", devices="cpu:2").num_replicas_in_sync == 2


def test_an_unreadable_tf_config_is_an_error_before_a_strategy_is_made(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", "{")
    with pytest.raises(ClusterError, match="TF_CONFIG is set but cannot be read"):
        mk.strategy.create("mirrored", devices="cpu:2")


def test_a_cluster_that_is_given_goes_before_the_environment(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", "{")
    with pytest.raises(StrategyError, match="2 workers"):
        mk.strategy.create("mirrored", devices="cpu:2", cluster=mk.cluster.Cluster(workers=("a:1", "b:1")))
