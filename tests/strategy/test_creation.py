from __future__ import annotations

import logging

import pytest
import tensorflow as tf

import mirrorkit as mk
from mirrorkit.strategy import creation

KINDS = [
    ("one_device", 1, "OneDeviceStrategy"),
    ("mirrored", 1, "MirroredStrategy"),
    ("mirrored", 4, "MirroredStrategy"),
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
