"""Strategies of each kind, the all-reduces of one machine, and what no strategy can be made of."""

from __future__ import annotations

import logging
import os

import numpy as np
import pytest
import tensorflow as tf

import mirrorkit as mk
from mirrorkit.cluster import Cluster
from mirrorkit.errors import ClusterError, DeviceError, StrategyError
from mirrorkit.strategy import communication, creation, parameter_server

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


# --- what no strategy can be made of is refused by name, with the cure, before anything is waited for or started


TWO = Cluster(workers=("a:1", "b:1"))
CHIEF_AND_WORKER = Cluster(workers=("b:1",), chief="a:1", task_type="chief")
SERVERS = Cluster(workers=("a:1",), ps=("b:1",), chief="c:1", task_type="chief")
EVALUATOR = Cluster(workers=("a:1", "b:1"), task_type="evaluator")
EVALUATOR_OF_SERVERS = Cluster(workers=("a:1",), ps=("b:1",), chief="c:1", task_type="evaluator")
UNKNOWN_HOST = {"workers": ("localhost:1025", "no-such-host.invalid:1")}
UNKNOWN = r"within 0.2 s for 'no-such-host.invalid' \(worker 1\)"

REFUSALS = [
    ("horovod", {}, r"'horovod'.*'auto', 'one_device', 'mirrored'"),
    ("one_device", {"devices": "cpu:2"}, r"2 devices.*'mirrored'"),
    ("mirrored", {"devices": "cpu:2", "communication": "nccl"}, "without GPUs"),
    ("mirrored", {"devices": "cpu:2", "communication": "gloo"}, "'hierarchical', 'one_device'"),
    ("mirrored", {"devices": "cpu:2", "cluster": TWO}, r"2 workers.*unrelated model"),
    ("mirrored", {"devices": "cpu:2", "cluster": CHIEF_AND_WORKER}, r"2 workers.*unrelated model"),
    ("auto", {"devices": "cpu:2", "cluster": TWO}, "devices='cpu:2'.* 'multi_worker'"),
    ("auto", {"devices": "cpu:2", "cluster": SERVERS}, "devices='cpu:2'.* 'parameter_server'"),
    ("multi_worker", {}, "not in a cluster.* mirrorkit launch"),
    ("multi_worker", {"cluster": SERVERS}, "Take 'parameter_server'"),
    ("multi_worker", {"cluster": EVALUATOR}, "does not train"),
    ("multi_worker", {"cluster": TWO, "devices": "cpu:4"}, "Start more workers instead"),
    ("multi_worker", {"cluster": TWO, "devices": ["gpu:0"]}, "'gpu:2', 2"),
    ("multi_worker", {"cluster": TWO, "devices": "gpu:99"}, "sees . GPUs"),
    ("multi_worker", {"cluster": TWO, "communication": "hierarchical"}, "'auto', 'ring', 'nccl'"),
    ("multi_worker", {"cluster": TWO, "communication": "nccl", "devices": "cpu"}, "without GPUs. Take 'ring'"),
    ("parameter_server", {}, "not in a cluster"),
    ("parameter_server", {"cluster": TWO}, "needs a cluster with a chief.*found"),
    ("parameter_server", {"cluster": SERVERS, "devices": "cpu:2"}, "Leave devices out"),
    ("tpu", {"devices": 4}, "devices=4 does not name a TPU"),
]
OF_THE_CLUSTER = [
    ("parameter_server", {"cluster": Cluster(workers=("a:1",), ps=("b:1",))}, "Add the chief's address"),
    ("parameter_server", {"cluster": EVALUATOR_OF_SERVERS}, "one chief, which"),
    ("auto", {"cluster": Cluster(**UNKNOWN_HOST), "start_timeout": 0.2}, UNKNOWN),
]
OF_DEVICES = [("mirrored", {"devices": 4}, "4 GPUs were"), ("mirrored", {"devices": "gpu"}, "All GPUs were")]
OF_DEVICES += [("mirrored", {"devices": "gpu:1"}, "1 GPU was")]


@pytest.mark.parametrize(
    ("error", "refusal"),
    [(StrategyError, refusal) for refusal in REFUSALS] + [(ClusterError, refusal) for refusal in OF_THE_CLUSTER],
    ids=lambda value: "-".join(map(str, value[:2]))[:60] if isinstance(value, tuple) else value.__name__,
)
def test_it_is_refused_with_the_cure(monkeypatch, error, refusal):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    kind, options, message = refusal
    with pytest.raises(error, match=message):
        mk.strategy.create(kind, **{"start_timeout": 0.1, **options})


@pytest.mark.skipif(bool(tf.config.list_physical_devices("GPU")), reason="this machine has a GPU")
@pytest.mark.parametrize(("kind", "options", "asked"), OF_DEVICES)
def test_missing_gpus_say_what_there_is_and_how_to_rehearse(monkeypatch, kind, options, asked):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    with pytest.raises(DeviceError, match=rf"{asked} asked for, 0 found.*devices='cpu:"):
        mk.strategy.create(kind, **options)


def test_tf_config_is_read_unless_a_cluster_is_given(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", TWO.to_tf_config())
    with pytest.raises(StrategyError, match=r"2 workers.*unrelated model"):
        mk.strategy.create("mirrored", devices="cpu:2")
    for alone in (Cluster(workers=("a:1",)).to_tf_config(), EVALUATOR.to_tf_config(), "{}"):
        monkeypatch.setenv("TF_CONFIG", alone)
        assert mk.strategy.create("mirrored", devices="cpu:2").num_replicas_in_sync == 2
    monkeypatch.setenv("TF_CONFIG", "{")
    with pytest.raises(ClusterError, match="TF_CONFIG"):
        mk.strategy.create("mirrored", devices="cpu:2")
    with pytest.raises(StrategyError, match="2 workers"):
        mk.strategy.create("mirrored", devices="cpu:2", cluster=TWO)


# --- what is checked before parameter servers start; tests/train/parameter_server runs them


@pytest.mark.parametrize(
    ("cores", "given", "threads", "warns"),
    [(1, "", "4", False), (8, "", "", False), (8, "2", "4", True), (1, "6", "6", False), (3, "many", "4", True)],
)
def test_a_serving_task_gets_at_least_four_threads(monkeypatch, caplog, cores, given, threads, warns):
    monkeypatch.setenv("TF_NUM_INTEROP_THREADS", given)
    monkeypatch.setattr(parameter_server.processor, "cores", lambda: cores)
    parameter_server._raise_threads()
    assert os.environ["TF_NUM_INTEROP_THREADS"] == threads
    assert ("too few" in caplog.text) == warns


# --- the all-reduces between the devices of one machine


@pytest.mark.parametrize(
    ("kind", "replicas", "how"),
    [
        *(("mirrored", 4, "auto"), ("central_storage", 2, "auto")),
        *(("mirrored", 2, how) for how in ("ring", "hierarchical", "one_device")),
    ],
)
def test_all_reduce_in_a_compiled_loop_is_exact_and_equal_on_all_replicas(strategy_of, kind, replicas, how):
    strategy = strategy_of(kind, replicas, how)
    shares = np.random.default_rng(0).integers(-100, 100, (replicas, 1000)).astype(np.float32)

    def replica(total):
        context = tf.distribute.get_replica_context()
        mine = tf.gather(tf.constant(shares), context.replica_id_in_sync_group)
        return total + context.all_reduce(tf.distribute.ReduceOp.SUM, mine)

    @tf.function
    def three_times():
        total = strategy.run(lambda: tf.zeros([1000]))
        for _ in tf.range(3):
            total = strategy.run(replica, args=(total,))
        return total

    for total in strategy.experimental_local_results(three_times()):
        np.testing.assert_array_equal(total.numpy(), 3 * shares.sum(axis=0))


def test_virtual_devices_reduce_on_one_device_and_real_gpus_by_default(strategy_of, monkeypatch):
    # TensorFlow's own choice for virtual devices is right but several times slower, so no result would show a relapse.
    chosen = []
    original = tf.distribute.MirroredStrategy

    def spy(names, cross_device_ops):
        chosen.append(cross_device_ops)
        return original(names, cross_device_ops=cross_device_ops)

    monkeypatch.setattr(tf.distribute, "MirroredStrategy", spy)
    mk.strategy.create("mirrored", devices="cpu:2")
    assert isinstance(chosen[-1], tf.distribute.ReductionToOneDevice)
    monkeypatch.setattr(communication, "share_physical_device", lambda names: False)
    mk.strategy.create("mirrored", devices="cpu:2")
    assert chosen[-1] is None
