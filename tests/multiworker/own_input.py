"""Training on data of which each worker reads its own rows; for one process and for several workers.

Run: python -m mirrorkit launch --workers 3 own_input.py FILES FOLDER PART [PART ...]
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import mirrorkit as mk

EXAMPLES, BATCH = 101, 24  # the last batch has 5
SHAPE = (8, 8, 1)


def split() -> mk.data.Split:
    """Images whose first pixel is the example's number."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (EXAMPLES, *SHAPE), dtype=np.uint8)
    images[:, 0, 0, 0] = np.arange(EXAMPLES)
    return mk.data.arrays(images, rng.integers(0, 2, EXAMPLES))


def noisy(images: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """An augmentation of a user's."""
    return tf.cast(images, tf.float32) + tf.random.stateless_uniform(tf.shape(images), seed)


class Decoder:
    """Decodes the examples of a set from elsewhere, and notes the number of each."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def __call__(self, serialized: tf.Tensor) -> Any:
        spec = {name: tf.io.FixedLenFeature([], tf.string) for name in ("x", "y")}
        parsed = tf.io.parse_single_example(serialized, spec)
        image = tf.reshape(tf.io.decode_raw(parsed["x"], tf.uint8), SHAPE)
        (number,) = tf.py_function(self._note, [image[0, 0, 0]], [tf.uint8])
        image = tf.tensor_scatter_nd_update(image, [[0, 0, 0]], [tf.ensure_shape(number, [])])
        return image, tf.reshape(tf.io.decode_raw(parsed["y"], tf.int64), [])

    def _note(self, number: tf.Tensor) -> list[tf.Tensor]:
        self.seen.append(int(number))
        return [number]


def recipes(folder: Path) -> dict[str, mk.data.Recipe]:
    """Every kind of recipe, in memory and from files, with augmentation; the files are written by the test."""
    augment = [mk.data.augment.pad_and_crop(1), noisy]
    shuffled = {"global_batch_size": BATCH, "shuffle": True, "seed": 1, "augment": augment}
    return {
        "batches": mk.data.batches(split(), **shuffled),
        "resident": mk.data.resident(split(), **shuffled),
        "records": mk.data.records(folder / "plain", **shuffled),
        "gzip": mk.data.records(folder / "gzip", **shuffled),
        "in order": mk.data.records(folder / "plain", global_batch_size=BATCH, augment=augment),
    }


def from_function(*, own: bool = True) -> mk.data.Recipe:
    """Each worker's part of the same images; not `own`: all the same ones."""
    whole = split()
    used = EXAMPLES // BATCH * BATCH

    def function(shard: int, num_shards: int, epoch: int) -> tf.data.Dataset:
        numbers = np.random.default_rng(epoch).permutation(used)
        mine = numbers.reshape([-1, num_shards, BATCH // num_shards])[:, shard if own else 0].ravel()
        dataset = tf.data.Dataset.from_tensor_slices((whole.images[mine], whole.labels[mine]))
        return dataset.batch(BATCH // num_shards, drop_remainder=True)

    return mk.data.from_function(function, global_batch_size=BATCH)


class Run:
    """One loop for all fits, each of which begins with the same weights.

    Args:
        files: where the test has written the sets.
        folder: for checkpoints.
    """

    def __init__(self, strategy: tf.distribute.Strategy, files: Path, folder: Path) -> None:
        keras.utils.set_random_seed(0)
        with strategy.scope():
            layers = [keras.layers.Rescaling(1 / 255), keras.layers.Flatten(), keras.layers.Dense(2)]
            self.model = keras.Sequential([keras.Input(SHAPE), *layers])
            optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self.loop = mk.train.Loop(strategy, mk.train.Step(self.model, optimizer, loss=loss, metrics=["accuracy"]))
        self.first = [variable.numpy() for variable in self.loop.step.variables]
        self.strategy, self.files, self.folder = strategy, files, folder

    def fit(self, data: Any, **options: Any) -> dict[str, Any]:
        """Train for two epochs from the first weights on; returns weights and history."""
        for variable, value in zip(self.loop.step.variables, self.first, strict=True):
            variable.assign(value)
        self.loop.position = mk.train.Position()
        report = self.loop.fit(data, **{"epochs": 2, "verbose": 0, **options})
        return {"weights": [weight.tolist() for weight in self.model.get_weights()], "history": report.history}

    def train(self) -> dict[str, Any]:
        """Return for each recipe what a fit comes to and this worker's rows of every batch, as digests."""
        found: dict[str, Any] = {}
        for name, recipe in recipes(self.files).items():
            seen = self.fit(recipe)
            if name == "in order":
                seen["predict"] = self.loop.predict(recipe).tolist()
                seen["evaluate"] = self.loop.evaluate(recipe)
            rows = mk.data.distribute(recipe, self.strategy)
            pictures = [self.strategy.experimental_local_results(batch[0])[0].numpy() for batch in rows]
            seen["pictures"] = [[hashlib.sha256(picture).hexdigest() for picture in batch] for batch in pictures]
            found[name] = seen
        return {**found, "from_function": self.fit(from_function())}

    def decoded(self) -> list[int]:
        """Return which examples this worker decodes in an epoch of a fit."""
        decoder = Decoder()
        files = str(self.files / "plain" / "*.tfrecord")
        shuffled = mk.data.records(files, global_batch_size=BATCH, shuffle=True, decode=decoder)
        self.fit(shuffled, epochs=1, steps_per_epoch=1)
        decoder.seen.clear()
        self.fit(shuffled, epochs=1)
        return decoder.seen

    def refused(self) -> str:
        """Return what is said of workers that make the same data."""
        try:
            self.fit(from_function(own=False))
        except mk.errors.DataError as error:
            return str(error)
        return ""

    def leave(self) -> None:
        """Break two fits of `train` off within the second epoch."""
        for name, data in self._broken_off().items():
            with contextlib.suppress(Left):
                self.fit(data, callbacks=[self._checkpoints(name), Leave()])

    def go_on(self) -> dict[str, Any]:
        """Return what these fits come to from their checkpoints in the folder on; or why they do not go on."""
        found: dict[str, Any] = {}
        for name, data in self._broken_off().items():
            try:
                found[name] = self.fit(data, callbacks=[self._checkpoints(name)])
            except mk.errors.CheckpointError as error:
                found[name] = str(error)
        return found

    def parts(self, names: list[str]) -> dict[str, Any]:
        """Return what each of these methods found."""
        return {name: getattr(self, name)() for name in names}

    def _broken_off(self) -> dict[str, mk.data.Recipe]:
        return {"records": recipes(self.files)["records"], "from_function": from_function()}

    def _checkpoints(self, name: str) -> mk.train.Checkpoints:
        return mk.train.Checkpoints(self.folder / "checkpoints" / name, every=1, keep=99)


class Left(Exception):
    """Ends a fit."""


class Leave(keras.callbacks.Callback):
    """Ends a fit in the middle of its second epoch, which has four batches or five."""

    steps = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.steps += 1
        if self.steps == 7:
            raise Left


if __name__ == "__main__":
    files, folder = map(Path, sys.argv[1:3])
    made = mk.strategy.create("auto", start_timeout=120)
    found = Run(made, files, folder).parts(sys.argv[3:])
    (folder / f"found{mk.strategy.worker_index(made)}.json").write_text(json.dumps(found))
