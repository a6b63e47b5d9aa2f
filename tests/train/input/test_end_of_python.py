"""A script ends although tf.data is waiting for an element from Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

ITEMS = """
import time

import numpy as np


class Slow:
    def __len__(self):
        return 2400

    def __getitem__(self, number):
        time.sleep(0.01)
        return np.ones(8, "float32"), 1


def generated():
    for number in range(2400):
        yield Slow()[number]
"""
SCRIPT = """
import keras
import slow_items
import tensorflow as tf

import mirrorkit as mk

strategy = mk.strategy.create("one_device", devices="cpu:1")
with strategy.scope():
    model, optimizer = keras.Sequential([keras.Input((8,)), keras.layers.Dense(2)]), keras.optimizers.SGD(0.1)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
loop = mk.train.Loop(strategy, mk.train.Step(model, optimizer, loss=loss), steps_per_call=1)
spec = tf.TensorSpec((8,)), tf.TensorSpec((), tf.int64)
generator = tf.data.Dataset.from_generator(slow_items.generated, output_signature=spec).batch(12).prefetch(3)
loop.fit(generator, steps_per_epoch=3, verbose=0)
served = mk.data.source(slow_items.Slow(), global_batch_size=12, processes=2)
loop.fit(served, steps_per_epoch=3, verbose=0)
print("trained", flush=True)
"""


def test_with_batches_under_way(tmp_path: Path, run_python: Any) -> None:
    """Of a generator, and of processes that serve items."""
    (tmp_path / "slow_items.py").write_text(ITEMS)
    done = run_python(f"import sys; sys.path.append({str(tmp_path)!r})\n{SCRIPT}", timeout=60)
    assert done.stdout.split()[-1] == "trained"
