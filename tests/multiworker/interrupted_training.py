"""A training on workers that is interrupted; run by the tests, once as it is and once undisturbed.

Run: python -m mirrorkit launch --workers 2 interrupted_training.py FOLDER [--slow-from 30]
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np

import mirrorkit as mk


class Slow(keras.callbacks.Callback):
    """From a step on each call takes a second, once in a folder: so that somebody has the time to interrupt it."""

    def __init__(self, step: int, folder: Path) -> None:
        super().__init__()
        self._step, self._done = step, folder / "happened"
        self._loop: Any = None
        self._slow = False

    def set_loop(self, loop: Any) -> None:
        self._loop = loop

    def get_state(self) -> None:
        """Nothing to save: a worker that starts again is not slow."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._slow:
            time.sleep(1)
        elif self._loop.position.steps >= self._step and not self._done.exists():
            self._done.touch()
            self._slow = True


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--slow-from", type=int, help="the step from which worker 0 is slow")
    options = parser.parse_args()

    keras.utils.set_random_seed(0)
    strategy = mk.strategy.create("auto", start_timeout=120)
    me = mk.strategy.worker_index(strategy)
    print(f"pid {os.getpid()}", flush=True)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(100, 8)).astype("float32")
    split = mk.data.arrays(x, (x[:, 0] > 0).astype("int64"))
    train = mk.data.batches(split, global_batch_size=10, shuffle=True)
    with strategy.scope():
        layers = [keras.layers.Dense(8), keras.layers.BatchNormalization(), keras.layers.Dropout(0.2)]
        model = keras.Sequential([keras.Input((8,)), *layers, keras.layers.Dense(2)])
        optimizer = keras.optimizers.Adam(0.01)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    loop = mk.train.Loop(strategy, mk.train.Step(model, optimizer, loss=loss), steps_per_call=3)
    callbacks: list[Any] = [mk.train.Checkpoints(options.folder / "checkpoints", every=7)]
    if options.slow_from and me == 0:
        callbacks.append(Slow(options.slow_from, options.folder))
    print(f"begins at {time.time()}", flush=True)
    report = loop.fit(train, epochs=8, verbose=0, callbacks=callbacks)
    values = [v.numpy() for v in loop.step.variables]
    np.savez(options.folder / f"end{me}.npz", np.array(report.history["loss"]), *values)
    print("done", flush=True)


if __name__ == "__main__":
    main()
