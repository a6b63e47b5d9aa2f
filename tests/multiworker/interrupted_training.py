"""A training on workers to which something happens at a step; run by the tests, once as it is and once undisturbed.

Run: python -m mirrorkit launch --workers 2 interrupted_training.py FOLDER [--event kill --worker 1 --step 30]
"""

from __future__ import annotations

import argparse
import os
import signal
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np

import mirrorkit as mk

SIGNALS = {"kill": signal.SIGKILL, "term": signal.SIGTERM}


class Event(keras.callbacks.Callback):
    """Something that happens to one worker at the end of the first call that reaches a step, once in a folder."""

    def __init__(self, event: str, step: int, folder: Path) -> None:
        super().__init__()
        self._event, self._step, self._done = event, step, folder / "happened"
        self._loop: Any = None
        self._slow = False

    def set_loop(self, loop: Any) -> None:
        self._loop = loop

    def get_state(self) -> None:
        """Nothing to save: a worker that starts again is not slow."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._slow:
            time.sleep(1)
        if self._loop.position.steps < self._step or self._done.exists():
            return
        self._done.write_text(str(time.time()))
        if self._event == "slow":  # so that somebody else has the time to interrupt it
            self._slow = True
            return
        os.kill(os.getpid(), SIGNALS[self._event])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--event", choices=["kill", "term", "slow"])
    parser.add_argument("--worker", type=int, default=0)
    parser.add_argument("--step", type=int, default=0)
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
    if options.event and me == options.worker:
        callbacks.append(Event(options.event, options.step, options.folder))
    print(f"begins at {time.time()}", flush=True)
    report = loop.fit(train, epochs=8, verbose=0, callbacks=callbacks)
    values = [v.numpy() for v in loop.step.variables]
    np.savez(options.folder / f"end{me}.npz", np.array(report.history["loss"]), *values)
    print("done", flush=True)


if __name__ == "__main__":
    main()
