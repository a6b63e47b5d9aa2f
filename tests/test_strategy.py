from __future__ import annotations

import importlib
import json
import logging

import numpy as np
import pytest
import tensorflow as tf

import mirrorkit as mk
from mirrorkit._keras import keras
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


@pytest.mark.parametrize(("kind", "replicas"), [("mirrored", 2), ("mirrored", 4), ("central_storage", 2)])
def test_all_reduce_in_a_compiled_loop_is_exact_and_equal_on_all_replicas(strategy_of, kind, replicas):
    strategy = strategy_of(kind, replicas)
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
    monkeypatch.setattr(mk.devices, "share_hardware", lambda names: False)
    mk.strategy.create("mirrored", devices="cpu:2")
    assert chosen[-1] is None


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


def test_describe_names_the_tasks_of_parameter_servers(run_python):
    code = """
        import json
        import mirrorkit as mk
        cluster = mk.testing.local_cluster(workers=2, ps=1)
        print(json.dumps(mk.strategy.describe(mk.strategy.create("parameter_server", cluster=cluster))))
    """
    assert run_python(code).json() == "ParameterServerStrategy, 2 workers, 1 ps"


def test_unknown_kind_names_the_known_ones():
    with pytest.raises(StrategyError, match=r"'horovod'.*'auto', 'one_device', 'mirrored'"):
        mk.strategy.create("horovod")


@pytest.mark.skipif(bool(tf.config.list_physical_devices("GPU")), reason="this machine has a GPU")
@pytest.mark.parametrize(
    ("devices", "asked"), [(4, "4 GPUs asked"), ("gpu", "Any GPUs asked"), ("gpu:1", "1 GPU asked")]
)
def test_missing_gpus_say_what_there_is_and_how_to_rehearse(devices, asked):
    with pytest.raises(DeviceError, match=rf"{asked}, 0 found: none.*devices='cpu:\d'"):
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


PS = mk.cluster.Cluster(workers=("a:1",), ps=("b:1",), chief="c:1", task_type="chief")
WORKERS = mk.cluster.Cluster(workers=("a:1", "b:1"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "in no cluster. Start it by `python -m mirrorkit launch --workers 2 script.py`"),
        ({"cluster": PS}, "Take 'parameter_server'"),
        ({"cluster": mk.cluster.Cluster(workers=("a:1", "b:1"), task_type="evaluator")}, "trains with nobody"),
        ({"cluster": WORKERS, "devices": "cpu:4"}, "Start more workers instead"),
        ({"cluster": WORKERS, "devices": ["gpu:0"]}, "'gpu:2', 2"),
        ({"cluster": WORKERS, "devices": "gpu:99"}, "sees . GPUs"),
        ({"cluster": WORKERS, "communication": "hierarchical"}, "there are 'auto', 'ring', 'nccl'"),
        ({"cluster": WORKERS, "communication": "nccl", "devices": "cpu"}, "without GPUs. Take 'ring'"),
    ],
)
def test_multi_worker_refuses_what_it_cannot_be_before_it_waits_for_anyone(options, message):
    with pytest.raises(StrategyError, match=message):
        mk.strategy.create("multi_worker", **options)


def test_workers_must_agree_on_versions_gpus_and_communication(monkeypatch):
    agreed = {}

    def meet(cluster, *, timeout, must_agree):
        agreed.update(must_agree)
        raise ClusterError("far enough")

    multi_worker = importlib.import_module("mirrorkit.strategy.multi_worker")
    monkeypatch.setattr(multi_worker, "check_network", lambda cluster, timeout: None)
    monkeypatch.setattr(multi_worker, "meet", meet)
    with pytest.raises(ClusterError, match="far enough"):
        mk.strategy.create("multi_worker", cluster=WORKERS, devices="cpu", communication="ring")
    versions = {"mirrorkit": mk.__version__, "TensorFlow": tf.__version__, "Keras": keras.__version__}
    assert agreed == {**versions, "GPUs per worker": 0, "communication": "ring"}


@pytest.mark.parametrize("others", [{}, {"chief": "localhost:1026", "ps": ("localhost:1027",)}], ids=["", "ps"])
def test_hosts_without_address_are_named_before_tensorflow_starts(others):
    cluster = mk.cluster.Cluster(workers=("localhost:1025", "no-such-host.invalid:1"), **others)
    with pytest.raises(ClusterError, match=r"within 0.2 s for 'no-such-host.invalid' \(worker 1\)"):
        mk.strategy.create("auto", cluster=cluster, start_timeout=0.2)


@pytest.mark.parametrize("communication", ["ring", "hierarchical", "one_device"])
def test_every_all_reduce_of_one_machine_sums_exactly(communication):
    strategy = mk.strategy.create("mirrored", devices="cpu:2", communication=communication)

    @tf.function
    def summed():
        def on_replica():
            context = tf.distribute.get_replica_context()
            mine = tf.cast(context.replica_id_in_sync_group, tf.float32) + tf.constant([1.0, 10.0])
            return context.all_reduce(tf.distribute.ReduceOp.SUM, mine)

        return strategy.run(on_replica)

    for value in strategy.experimental_local_results(summed()):
        assert value.numpy().tolist() == [3.0, 21.0]


@pytest.mark.parametrize(
    ("communication", "message"),
    [("nccl", "without GPUs"), ("gloo", "there are 'auto', 'nccl', 'ring', 'hierarchical', 'one_device'")],
)
def test_an_all_reduce_that_these_devices_do_not_have_is_refused(communication, message):
    with pytest.raises(StrategyError, match=message):
        mk.strategy.create("mirrored", devices="cpu:2", communication=communication)


def test_one_process_has_one_worker_and_is_its_chief(strategy_of):
    for strategy in (strategy_of("mirrored", 2), tf.distribute.get_strategy()):
        assert mk.strategy.num_workers(strategy) == 1
        assert mk.strategy.worker_index(strategy) == 0
        assert mk.strategy.is_chief(strategy)
        assert mk.strategy.of_all_workers(strategy, 7) == [7.0]


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
