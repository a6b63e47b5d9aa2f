"""What of a comparison on GPUs can be seen without one: weights come close, and a net for which they do not."""

from __future__ import annotations

import pytest
import tensorflow as tf
from on_gpus import processes

import mirrorkit as mk
from mirrorkit._keras import keras


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
