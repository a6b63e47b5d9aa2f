"""examples/benchmarks/gpu.py: its report, on measurements that are made up; and one whole rehearsal."""

from __future__ import annotations

import functools

import on_gpus.plan
import pytest
import tensorflow as tf
from on_gpus import processes

import mirrorkit as mk
from mirrorkit._keras import keras


def linear_step():
    net = keras.Sequential([keras.Input((16, 16, 1)), keras.layers.Flatten(), keras.layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return mk.train.Step(net, keras.optimizers.SGD(1e-4), loss=loss)


@pytest.mark.slow  # more than a dozen trainings compile
@pytest.mark.usefixtures("in_this_process")
def test_a_rehearsal_measures_everything(run_benchmark, capsys, monkeypatch):
    collectives = processes.collectives
    monkeypatch.setattr(processes, "collectives", lambda **of: collectives(**{**of, "sizes": [4096], "repeats": 1}))
    monkeypatch.setattr(processes, "closeness", functools.cache(processes.closeness))
    monkeypatch.setattr(processes, "_smooth_step", linear_step)  # its own net: test_processes.py
    written, title = run_benchmark("gpu.py --devices cpu --models linear --data synthetic --repeats 1")
    rows = written["rows"]
    for row in rows:
        assert "error" not in row, row
        assert row["n"] == len(row["values"])
        assert min(row["values"]) > 0
    names = {(row["part"], row["what"]) for row in rows if "what" in row}
    wanted = {"one device": on_gpus.plan.SPEED, "precision": on_gpus.plan.PRECISION}
    assert names == {(part, name) for part, contenders in wanted.items() for name in contenders}
    speeds = {row["what"]: row for row in rows if row["part"] == "one device"}
    assert speeds["fit"]["to_fit"] == 1.0
    assert speeds["Step(jit_compile=True)"]["xla"] is True
    scaling = [(row["on"], row["scaling"], row["replicas"]) for row in rows if row["part"] == "scaling"]
    assert ("CPU as logical GPUs", "strong", 4) in scaling
    assert ("CPU as GPUs", "weak", 2) in scaling
    equal = [row for row in rows if row["part"] == "equivalence"]
    assert [(row["replicas"], row["tf32"]) for row in equal] == [(n, tf32) for n in (2, 4, 2) for tf32 in (False, True)]
    assert all(row["within"] and row["copies_agree"] and row["n"] == 20 for row in equal)
    assert {row["implementation"] for row in rows if row["part"] == "all-reduce"} >= {"auto", "hierarchical"}
    assert "A rehearsal on virtual CPU devices" in capsys.readouterr().out
    assert title == "Scaling"


# --- what of a comparison on GPUs can be seen without one: weights come close, and a net for which they do not


@pytest.mark.slow
def test_weights_on_two_devices_come_close_and_a_net_that_depends_on_the_cut_is_found(monkeypatch):
    tf32 = tf.config.experimental.tensor_float_32_execution_enabled()
    nets = {"kind": "mirrored", "devices": "cpu:2", "steps": 3}
    (row,) = processes.closeness(**nets, tf32=[False])
    assert row["n"] == 3
    assert row["difference"] == row["values"][-1] < 1e-5
    assert row["within"]
    assert row["copies_agree"]
    assert not tf.config.experimental.tensor_float_32_execution_enabled()

    def with_batch_statistics():
        layers = [keras.layers.Flatten(), keras.layers.BatchNormalization(), keras.layers.Dense(10)]
        net = keras.Sequential([keras.Input((16, 16, 1)), *layers])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        return mk.train.Step(net, keras.optimizers.SGD(0.01), loss=loss)

    monkeypatch.setattr(processes, "_smooth_step", with_batch_statistics)
    (row,) = processes.closeness(**nets, tf32=[True])
    assert not row["within"]
    assert tf.config.experimental.tensor_float_32_execution_enabled()
    tf.config.experimental.enable_tensor_float_32_execution(tf32)
