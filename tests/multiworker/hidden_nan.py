"""A training on workers in which a weight becomes NaN behind a finite loss; run by the tests.

Run: python -m mirrorkit launch --workers 2 hidden_nan.py FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import mirrorkit as mk


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


def main() -> None:
    folder = Path(sys.argv[1])
    strategy = mk.strategy.create("auto", start_timeout=120)
    worker = mk.strategy.worker_index(strategy)
    found = {
        "data": failure(strategy, folder / "data"),
        "one worker": failure(strategy, folder / "callback", spoil(worker)),
    }
    (folder / f"found{worker}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
