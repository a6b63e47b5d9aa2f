"""Training on data of which each worker reads its own rows; for one process and for several workers.

Run: python -m mirrorkit launch --workers 3 own_input.py FOLDER [leave|go_on]
"""

from __future__ import annotations

import hashlib
import json
import os
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
    augment = [mk.data.augment.flip(), mk.data.augment.pad_and_crop(1), noisy]
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


def fit(strategy: tf.distribute.Strategy, data: Any, **options: Any) -> dict[str, Any]:
    """Train for two epochs; returns weights, history and the loop."""
    keras.utils.set_random_seed(0)
    with strategy.scope():
        layers = [keras.layers.Rescaling(1 / 255), keras.layers.Flatten(), keras.layers.Dense(2)]
        model = keras.Sequential([keras.Input(SHAPE), *layers])
        optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    loop = mk.train.Loop(strategy, mk.train.Step(model, optimizer, loss=loss, metrics=["accuracy"]))
    report = loop.fit(data, **{"epochs": 2, "verbose": 0, **options})
    return {"weights": [weight.tolist() for weight in model.get_weights()], "history": report.history, "loop": loop}


def train(strategy: tf.distribute.Strategy, folder: Path) -> dict[str, Any]:
    """Return for each recipe what a fit comes to and this worker's rows of every batch, as digests of the pictures."""
    found: dict[str, Any] = {}
    for name, recipe in recipes(folder).items():
        seen = fit(strategy, recipe)
        if name == "in order":
            seen["predict"] = seen["loop"].predict(recipe).tolist()
            seen["evaluate"] = seen["loop"].evaluate(recipe)
        del seen["loop"]
        rows = mk.data.distribute(recipe, strategy)
        pictures = [strategy.experimental_local_results(batch[0])[0].numpy() for batch in rows]
        seen["pictures"] = [[hashlib.sha256(picture).hexdigest() for picture in batch] for batch in pictures]
        found[name] = seen
    seen = fit(strategy, from_function())
    del seen["loop"]
    found["from_function"] = seen
    return found


def counted(strategy: tf.distribute.Strategy, folder: Path) -> list[int]:
    """Return which examples this worker decoded in an epoch of a fit."""
    decoder = Decoder()
    files = str(folder / "plain" / "*.tfrecord")
    shuffled = mk.data.records(files, global_batch_size=BATCH, shuffle=True, decode=decoder)
    loop = fit(strategy, shuffled)["loop"]
    decoder.seen.clear()
    loop.fit(shuffled, verbose=0)
    return decoder.seen


class Leave(keras.callbacks.Callback):
    """Ends the process in the middle of an epoch."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self.steps == 8:
            os._exit(3)
        self.steps += 1

    def on_train_begin(self, logs: Any = None) -> None:
        self.steps = 0


def go_on(strategy: tf.distribute.Strategy, folder: Path, *, leave: bool = False) -> list[Any]:
    """Train for three epochs, from where the run in the folder was; returns the weights."""
    every_step = [mk.train.Checkpoints(folder / "checkpoints", every=1)]
    hooks = [*every_step, keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: None)]
    recipe = recipes(folder)["records"]
    return fit(strategy, recipe, epochs=3, callbacks=[*hooks, Leave()] if leave else hooks)["weights"]


if __name__ == "__main__":
    if len(sys.argv) > 2:
        folder = Path(sys.argv[1])
        strategy = mk.strategy.create("auto", start_timeout=120)
        weights = go_on(strategy, folder, leave=sys.argv[2] == "leave")
        (folder / f"weights{mk.strategy.worker_index(strategy)}.json").write_text(json.dumps(weights))
        sys.exit()
    made, results = mk.strategy.create("auto", start_timeout=120), Path(sys.argv[1])
    found = train(made, results)
    found["decoded"] = counted(made, results)
    try:
        fit(made, from_function(own=False))
    except mk.errors.DataError as error:
        found["refused"] = str(error)
    (results / f"found{mk.strategy.worker_index(made)}.json").write_text(json.dumps(found))
