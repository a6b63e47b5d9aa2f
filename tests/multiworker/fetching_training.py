"""A training on items that each worker fetches for itself, whose fetches are noted; run by the tests.

Run: python -m mirrorkit launch --workers 2 fetching_training.py FOLDER [--kill STEP] [--processes N]
"""

from __future__ import annotations

import argparse
import os
import signal
from pathlib import Path
from typing import Any

import keras
import numpy as np
from own_items import Items

import mirrorkit as mk

EXAMPLES, BATCH, EPOCHS = 240, 12, 2
rng = np.random.default_rng(0)
X = rng.normal(size=(EXAMPLES, 8)).astype("float32")
Y = (X[:, 0] > 0).astype("int64")


class Kill(keras.callbacks.Callback):
    """Kills the process at the end of the call that reaches a step."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self._step = step

    def set_loop(self, loop: Any) -> None:
        self._loop = loop

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._loop.position.steps >= self._step:
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kill", type=int)
    parser.add_argument("--processes", type=int)
    options = parser.parse_args()

    keras.utils.set_random_seed(0)
    strategy = mk.strategy.create("auto", start_timeout=120)
    me = mk.strategy.worker_index(strategy)
    log = options.folder / f"fetched{me}"
    items = Items(X, Y, log)
    train = mk.data.source(items, global_batch_size=BATCH, shuffle=True, processes=options.processes)
    with strategy.scope():
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(2)])
        optimizer = keras.optimizers.Adam(0.01)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    loop = mk.train.Loop(strategy, mk.train.Step(model, optimizer, loss=loss), steps_per_call=1)
    callbacks: list[Any] = [mk.train.Checkpoints(options.folder / "checkpoints", every=5)]
    if options.kill is not None and me == 1:
        callbacks.append(Kill(options.kill))
    loop.warm_up(
        mk.data.source(Items(X, Y), global_batch_size=BATCH)
    )  # checks a sample, which each worker fetches whole
    log.write_text("")
    report = loop.fit(train, epochs=EPOCHS, verbose=0, callbacks=callbacks)
    np.savez(options.folder / f"end{me}.npz", np.array(report.history["loss"]), *model.get_weights())


if __name__ == "__main__":
    main()
