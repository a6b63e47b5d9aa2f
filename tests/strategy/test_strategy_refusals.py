"""What no strategy can be made of is refused by name, with the cure, before anything is waited for or started."""

from __future__ import annotations

import pytest
import tensorflow as tf

import mirrorkit as mk
from mirrorkit.cluster import Cluster
from mirrorkit.errors import ClusterError, DeviceError, StrategyError

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
