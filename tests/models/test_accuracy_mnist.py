"""The accuracy that the docstring of mnist_cnn claims, on the real digits: `pytest -m slow tests/models`."""

from __future__ import annotations

import os

import pytest

EPOCHS = 5
TRAIN = f"""
from mirrorkit import data, models, strategy, train
from mirrorkit._keras import keras

replicas = strategy.create("mirrored", devices="cpu:4")
keras.utils.set_random_seed(0)
digits = data.load("mnist")
batches = data.batches(digits.train, global_batch_size=256, shuffle=True, seed=0)
with replicas.scope():
    model = models.create("mnist_cnn")
    rate = keras.optimizers.schedules.CosineDecay(0.004, {EPOCHS} * batches.steps_per_epoch)
    optimizer = keras.optimizers.Adam(rate)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
loop = train.Loop(replicas, train.Step(model, optimizer, loss=loss, metrics=["accuracy"]))
loop.fit(batches, epochs={EPOCHS}, verbose=0)
print(loop.evaluate(data.batches(digits.test, global_batch_size=1000))["accuracy"])
"""


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("MIRRORKIT_DATA"), reason="needs MNIST: set MIRRORKIT_DATA to its folder")
@pytest.mark.usefixtures("with_onednn")
def test_mnist_cnn_reaches_99_percent_in_five_epochs_on_four_replicas(run_python):
    accuracy = run_python(TRAIN, timeout=280).json()
    print(f"mnist_cnn: {accuracy:.4f} after {EPOCHS} epochs")
    assert accuracy >= 0.99
