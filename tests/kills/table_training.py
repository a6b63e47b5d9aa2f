"""The training that `table_kills.py` strikes: two replicas, a large table, and a save every few steps.

    python tests/kills/table_training.py --rows 10000000 --out result.json --folder checkpoints --log steps.txt

At its end it writes to `--out` a digest of each replica's copy of every variable, its history, the milliseconds of a
step and the peak memory; `--log` has the lines of `killed_training.py`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from killed_training import Log

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.variables import copies

STEPS_PER_EPOCH, EVERY = 20, 15  # so that a save comes within epochs and at their ends
WIDTH, BATCH, WORDS = 16, 256, 3
OPTIMIZERS = {"adagrad": keras.optimizers.Adagrad, "adam": keras.optimizers.Adam}


class Steps(keras.callbacks.Callback):  # type: ignore[name-defined]
    """Takes the seconds of each step, without what happens between them."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []

    def get_state(self) -> None:
        """Nothing to save: a process has its own times."""

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.begin = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seconds.append(time.perf_counter() - self.begin)


def peak_memory(pid: int | str = "self") -> int:
    """The largest resident memory of a process so far, in bytes."""
    (line,) = (one for one in Path(f"/proc/{pid}/status").read_text().splitlines() if one.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def digest(copy: tf.Variable) -> str:
    """A digest of the bits of one replica's copy."""
    return hashlib.blake2b(copy.numpy().reshape(-1).view(np.uint8).data, digest_size=16).hexdigest()


def main() -> None:
    """Train, save, write the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, required=True, help=f"of the table, which has {WIDTH} columns")
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="adagrad")
    parser.add_argument("--epochs", type=int, default=3, help=f"of {STEPS_PER_EPOCH} steps each")
    for name in ("--out", "--folder", "--log"):
        parser.add_argument(name, required=True)
    options = parser.parse_args()

    mk.reproducible.enable(seed=1)
    strategy = mk.testing.virtual_replicas(2)
    rng = np.random.default_rng(0)
    ids = rng.integers(options.rows, size=(STEPS_PER_EPOCH * BATCH, WORDS))
    train = mk.data.batches(
        mk.data.arrays(ids, rng.integers(2, size=(len(ids), 1))), global_batch_size=BATCH, shuffle=True, seed=2
    )
    with strategy.scope():
        model = keras.Sequential([keras.Input((WORDS,), dtype="int64"), keras.layers.Embedding(options.rows, WIDTH)])
        model.add(keras.layers.Flatten())
        model.add(keras.layers.Dense(1, "sigmoid"))
        optimizer = OPTIMIZERS[options.optimizer](0.05)
        step = mk.train.Step(model, optimizer, loss="binary_crossentropy", sparse_embeddings=True)
    steps = Steps()
    callbacks = [
        *(steps, Log(options.log, Path(os.devnull))),
        mk.train.Checkpoints(options.folder, every=EVERY, keep=2),
    ]
    loop = mk.train.Loop(strategy, step, steps_per_call=1)
    report = loop.fit(train, epochs=options.epochs, callbacks=callbacks, verbose=0)
    result = {
        "peak": peak_memory(),
        "step_ms": 1e3 * statistics.median(steps.seconds),
        "history": report.history,
        "variables": [[v.path, *map(digest, copies(v))] for v in step.variables],
    }
    Path(options.out).write_text(json.dumps(result))


if __name__ == "__main__":
    main()
