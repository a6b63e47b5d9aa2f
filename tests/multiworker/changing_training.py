"""Digits trained on a number of workers that changes at given steps; each example is counted once it was trained on.

Run: python -m mirrorkit launch --workers 1:3 --slots room changing_training.py FOLDER [--at 100:kill:1 200:room:3]
"""

from __future__ import annotations

import argparse
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import mirrorkit as mk

EXAMPLES, BATCH = 20_000, 100


class Count(keras.layers.Layer):
    """Adds one part in `BATCH` for each time that an example is trained on; the checkpoints hold it."""

    def build(self, shape: Any) -> None:
        self.seen = self.add_weight(shape=(EXAMPLES,), name="seen", initializer="zeros", trainable=False)

    def call(self, index: Any, training: bool = False) -> Any:
        if training:
            ones = tf.ones_like(index, "float32")
            times = tf.math.unsorted_segment_sum(ones, tf.cast(index, tf.int32), EXAMPLES)
            self.seen.assign(self.seen + times / tf.cast(tf.size(index), "float32"))  # a mean over the rows
        return index


class Change(keras.callbacks.Callback):
    """At a step, once in a folder, another number of slots, or the end of the last worker, with which a slot goes.

    Of "nodes" the number is written alone: who started the job changes them.
    """

    def __init__(self, folder: Path, changes: list[str], worker: int, workers: int) -> None:
        super().__init__()
        self._folder, self._changes = folder, [change.split(":") for change in changes]
        self._worker, self._workers, self._pause = worker, workers, 0.0
        self._loop: Any = None

    def set_loop(self, loop: Any) -> None:
        self._loop = loop

    def get_state(self) -> None:
        """Nothing to save."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        time.sleep(self._pause)
        for step, what, count in self._changes:
            done = self._folder / f"{step}-{what}"
            is_mine = self._worker == (self._workers - 1 if what == "kill" else 0)
            if is_mine and self._loop.position.steps >= int(step) and not done.exists():
                done.touch()
                (self._folder / "room").write_text(count)
                if what == "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                if what == "room":
                    os.kill(_parent(os.getppid()), signal.SIGHUP)
                self._pause = 0.5 if what == "room" else 3.0  # for the signal to arrive, or for the nodes to come


class Pace(keras.callbacks.Callback):
    """Says how far the training is, and leaves time to strike it."""

    def __init__(self, seconds: float, worker: int) -> None:
        super().__init__()
        self._seconds, self._speaks, self._loop = seconds, worker == 0, None

    def set_loop(self, loop: Any) -> None:
        self._loop = loop

    def get_state(self) -> None:
        """Nothing to save."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._speaks:
            print("step", self._loop.position.steps, flush=True)
        time.sleep(self._seconds)


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def result(folder: Path) -> dict[str, np.ndarray]:
    """What a training has saved at its end."""
    with np.load(folder / "end.npz") as file:
        return dict(file)


def apart(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> float:
    """The largest difference of two results."""
    return max(float(np.max(np.abs(one[name] - other[name]))) for name in one)


def problems(found: dict[str, np.ndarray], fixed: list[dict[str, np.ndarray]], epochs: int) -> Iterator[str]:
    """What is wrong with a result, beside those of fixed numbers of workers, the first of which is one."""
    counts = found["count.seen"] * BATCH
    if not np.allclose(counts, epochs, atol=1e-3):
        yield f"examples were counted {counts.min():.2f} to {counts.max():.2f} times in {epochs} epochs"
    control = max(apart(one, fixed[0]) for one in fixed[1:])
    if not apart(found, fixed[0]) <= 3 * control:
        yield f"{apart(found, fixed[0]):.2e} from one worker, where fixed numbers of workers differ by {control:.2e}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--pace", type=float, metavar="SECONDS", help="say each step, and wait so long after it")
    parser.add_argument("--at", nargs="*", default=[], metavar="STEP:kill|room|nodes:SLOTS")
    options = parser.parse_args()

    keras.utils.set_random_seed(0)
    strategy = mk.strategy.create("auto", start_timeout=120)
    me, workers = mk.strategy.worker_index(strategy), mk.strategy.num_workers(strategy)
    digits = mk.data.load("mnist").train
    images, labels = digits.images[:EXAMPLES], digits.labels[:EXAMPLES]
    inputs = {"image": images.reshape(EXAMPLES, -1), "index": np.arange(EXAMPLES)}
    train = mk.data.batches(mk.data.arrays(inputs, labels), global_batch_size=BATCH, shuffle=True)
    with strategy.scope():
        image = keras.Input((784,), name="image")
        index = keras.Input((), dtype="int32", name="index")
        x = keras.layers.Dense(32, "relu")(keras.layers.Rescaling(1 / 255)(image))
        x = keras.layers.Dropout(0.1)(x) + 0 * keras.ops.cast(Count()(index), "float32")[:, None]
        model = keras.Model({"image": image, "index": index}, keras.layers.Dense(10)(x))
        optimizer = keras.optimizers.Adam(1e-3)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    step = mk.train.Step(model, optimizer, loss=loss, metrics=["accuracy"])
    loop = mk.train.Loop(strategy, step, steps_per_call=10)
    callbacks = [
        Change(options.folder, options.at, me, workers),
        mk.train.Checkpoints(options.folder / "checkpoints", every=30),
    ]
    if options.pace is not None:
        callbacks.append(Pace(options.pace, me))
    report = loop.fit(train, epochs=options.epochs, verbose=0, callbacks=callbacks)
    history = np.array([report.history[name] for name in ("loss", "accuracy")])
    if me == 0:
        values = {variable.path: variable.numpy() for variable in model.variables}
        np.savez(options.folder / "end.npz", history=history, **{n.replace("/", "."): v for n, v in values.items()})
    print(f"done with {workers} workers: {history[1, -1]:.4f}", flush=True)


if __name__ == "__main__":
    main()
