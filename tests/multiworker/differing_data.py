"""Two workers whose data differ in one way or another; run by the tests.

Run: python -m mirrorkit launch --workers 2 differing_data.py FOLDER
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import mirrorkit as mk

EXAMPLES, BATCH = 64, 16


def numbers(shift: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(EXAMPLES, 3)).astype("float32")
    return x, x.sum(1, keepdims=True) + shift


def shuffled(seed: int | None) -> tf.data.Dataset:
    """The user's own data set; each pass has another order."""
    return tf.data.Dataset.from_tensor_slices(numbers()).shuffle(EXAMPLES, seed=seed).batch(BATCH)


def augmented() -> tf.data.Dataset:
    """Inputs to which every worker adds random numbers of its own."""
    noise = np.random.default_rng()

    def add(x: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.ensure_shape(x + tf.numpy_function(lambda: np.float32(noise.normal()), [], tf.float32), [None, 3]), y

    return shuffled(0).map(add)


def of_unknown_length(batches: int) -> tf.data.Dataset:
    return shuffled(3).take(batches).filter(lambda x, y: True)


def recipe(seed: int, *, resident: bool = False) -> mk.data.Batches:
    make = mk.data.resident if resident else mk.data.batches
    return make(mk.data.arrays(*numbers()), global_batch_size=BATCH, shuffle=True, seed=seed)


def records(folder: Path, shift: int) -> mk.data.Records:
    mk.data.write_records(mk.data.arrays(*numbers(shift)), folder, num_files=2)
    return mk.data.records(folder, global_batch_size=BATCH, shuffle=True)


def make_loop(strategy: tf.distribute.Strategy) -> mk.train.Loop:
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4, "tanh"), keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD(0.1)
    return mk.train.Loop(strategy, mk.train.Step(model, optimizer, loss="mse"), steps_per_call=2)


def weights(loop: mk.train.Loop) -> list[list[float]]:
    return [v.numpy().ravel().tolist() for v in loop.step.model.trainable_variables]


def trained(strategy: tf.distribute.Strategy) -> list[list[float]]:
    """The weights after fits whose shuffles go on from epoch to epoch."""
    loop = make_loop(strategy)
    loop.fit(shuffled(5), epochs=2, verbose=0)
    loop.fit(of_unknown_length(3), epochs=2, verbose=0)
    loop.fit(shuffled(6), epochs=2, steps_per_epoch=3, verbose=0)
    return weights(loop)


def differing(me: int, folder: Path) -> dict[str, Callable[[], Any]]:
    """What differs, and the data of worker `me`."""
    return {
        "a shuffle without a seed": lambda: tf.random.set_seed(me) or shuffled(None),  # as clocks would seed it
        "another seed": lambda: recipe(me),
        "another seed, resident": lambda: recipe(me, resident=True),
        "other files": lambda: records(folder / f"records{me}", shift=me),
        "no batch": lambda: of_unknown_length(0 if me else 2),
        "fewer batches": lambda: shuffled(0).take(4 - me),
    }


def in_passes(loop: mk.train.Loop, me: int) -> dict[str, Callable[[], Any]]:
    """Passes over data that differ otherwise than at the first batch of a training."""
    return {
        "fit ends earlier": lambda: loop.fit(of_unknown_length(4 - me), verbose=0),
        "evaluate ends earlier": lambda: loop.evaluate(of_unknown_length(4 - me)),
        "validation of other data": lambda: loop.fit(recipe(0), validation_data=recipe(me), verbose=0),
        "predict ends earlier": lambda: loop.predict(of_unknown_length(4 - me)),
        "predict fewer batches": lambda: loop.predict(shuffled(0).take(4 - me)),
        "predict other data": lambda: loop.predict(recipe(me)),
    }


def main() -> None:
    folder = Path(sys.argv[1])
    strategy = mk.strategy.create("auto", start_timeout=120)
    me = mk.strategy.worker_index(strategy)
    found: dict[str, Any] = {"trained": trained(strategy), "errors": {}}
    loop = make_loop(strategy)
    found["before"] = weights(loop)
    for what, make in differing(me, folder).items():
        try:
            loop.fit(make(), verbose=0)
        except mk.errors.DataError as error:
            found["errors"][what] = str(error)
            tf.random.set_seed(0)
            continue
        break  # what comes after a training on such data says nothing
    found["after"] = weights(loop)
    if len(found["errors"]) == len(differing(me, folder)):
        loop.fit(augmented(), validation_data=recipe(0), verbose=0)
        found["end"] = weights(loop)
    for what, run in in_passes(loop, me).items():
        try:
            run()
        except mk.errors.DataError as error:
            found["errors"][what] = str(error)
    (folder / f"found{me}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
