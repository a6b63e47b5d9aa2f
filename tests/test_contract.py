"""The lines that version 0.1 promised run as they stand, without a word about anything deprecated."""

from __future__ import annotations

import struct
import textwrap
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of Keras

SCRIPT = """
import keras
import mirrorkit as mk

strategy = mk.strategy.create("auto")
digits = mk.data.load("mnist", data_dir=None)
train = mk.data.batches(digits.train, global_batch_size=256, shuffle=True, seed=0)
test = mk.data.batches(digits.test, global_batch_size=1000)

with strategy.scope():
    model = mk.models.create("mnist_cnn")
    optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

step = mk.train.Step(model, optimizer, loss=loss, metrics=["accuracy"])
loop = mk.train.Loop(strategy, step)
loop.warm_up(train)
report = loop.fit(train, epochs=2, validation_data=test, callbacks=[keras.callbacks.EarlyStopping("val_loss")])
report.history["val_accuracy"][-1]; report.examples_per_second
loop.evaluate(test)
"""

CUSTOM_LOOP = """
import tensorflow as tf

dataset = mk.data.distribute(train.dataset(epoch=0), strategy, autoshard="data")
step.build(strategy)

@tf.function
def train_step(batch):
    sums = strategy.run(step.compute, args=(batch,))
    return step.update(strategy, sums)

for batch in dataset:
    logs = train_step(batch)
"""


@pytest.fixture
def digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small MNIST whose digits are told apart by where they are bright."""
    rng = np.random.default_rng(0)
    for name, count in (("train", 1000), ("t10k", 200)):
        labels = rng.integers(0, 10, count).astype(np.uint8)
        images = rng.integers(0, 60, (count, 28, 28)).astype(np.uint8)
        images[np.arange(count), 2 * labels + 4] = 255
        header = struct.pack(">HBB", 0, 8, 3) + struct.pack(">III", count, 28, 28)
        (tmp_path / f"{name}-images-idx3-ubyte").write_bytes(header + images.tobytes())
        header = struct.pack(">HBB", 0, 8, 1) + struct.pack(">I", count)
        (tmp_path / f"{name}-labels-idx1-ubyte").write_bytes(header + labels.tobytes())
    monkeypatch.setenv("MIRRORKIT_DATA", str(tmp_path))


def test_the_script_and_the_custom_loop_run_as_they_stand(digits: None) -> None:
    names: dict[str, object] = {}
    exec(textwrap.dedent(SCRIPT), names)
    exec(textwrap.dedent(CUSTOM_LOOP), names)
    history = names["report"].history
    assert set(history) == {"loss", "accuracy", "val_loss", "val_accuracy"}
    assert names["report"].examples_per_second > 0
    assert names["logs"].keys() == {"loss", "accuracy"}
    assert history["val_accuracy"][-1] > 0.2  # of ten classes
