"""All workers stop by name where a weight becomes NaN behind a finite loss, and none waits for another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import mirrorkit as mk

pytestmark = pytest.mark.slow


def failure(strategy: tf.distribute.Strategy, folder: Path, *callbacks: keras.callbacks.Callback) -> list[str]:
    """Train with a NaN in a row of the second worker; return the variable and the message of the error."""
    keras.utils.set_random_seed(0)
    with strategy.scope():
        hide = keras.layers.Lambda(lambda x: tf.where(tf.math.is_nan(x), 0.0, x))
        first = keras.layers.Dense(8, name="first")
        model = keras.Sequential([keras.Input((4,)), first, hide, keras.layers.Dense(1)])
        step = mk.train.Step(model, keras.optimizers.Adam(0.01), loss="mse", shard_optimizer=True)
    x = np.random.default_rng(0).normal(size=(60, 4)).astype("float32")
    x[43, 2] = np.nan  # in batch 7 of 6 rows, whose last three are the second worker's
    data = mk.data.batches(mk.data.arrays(x, np.ones((60, 1), "float32")), global_batch_size=6)
    try:
        mk.train.Loop(strategy, step, steps_per_call=2).fit(
            data, verbose=0, callbacks=[mk.train.Checkpoints(folder, every=2, keep=9), *callbacks]
        )
    except mk.errors.NonFiniteLossError as error:
        return [str(error.variable), str(error)]
    return []


def spoil(worker: int) -> keras.callbacks.Callback:
    """A callback that writes a NaN on the second worker alone."""

    class Spoil(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: object = None) -> None:
            if worker == 1:
                kernel = self.model.layers[0].kernel
                kernel.assign(kernel * float("nan"))

    return Spoil()


def asked(strategy: tf.distribute.Strategy, folder: Path) -> tuple[list[str], list[str]]:
    """With a NaN in the data, and with one that a callback of one worker writes."""
    callback = spoil(mk.strategy.worker_index(strategy))
    return failure(strategy, folder / "data"), failure(strategy, folder / "callback", callback)


def test_two_workers(found: Any, folder: Path) -> None:
    (_, of_chief), (_, of_other) = found
    for (variable, message), _ in found:
        assert variable.endswith("first/kernel")
        assert "in one of the training steps 6 to 7" in message
    assert of_chief[1].startswith("A variable of another worker, whose error names it, became NaN")
    assert of_other[0].endswith("first/kernel")
    files = sorted(folder.glob("*/*.npz"))
    assert [file.stem for file in files] == ["step-0000000002", "step-0000000004", "step-0000000006"]
    for file in files:
        assert all(np.isfinite(value).all() for value in np.load(file).values() if value.dtype.kind == "f")
