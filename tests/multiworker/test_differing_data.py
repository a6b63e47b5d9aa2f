"""Workers that do not read the same data say so before the first step, and do not wait for each other."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import mirrorkit as mk

pytestmark = pytest.mark.slow

SAYS = {
    "a shuffle without a seed": "the first batch is one on worker 0, and another on worker 1",
    "another seed": "the first batch is one on worker 0, and another on worker 1",
    "other examples at the end": "the set in memory is one on worker 0, and another on worker 1",
    "no batch": "worker 1 found no batch, and the others did",
    "fewer batches": "an epoch's number of batches is one on worker 0, and another on worker 1",
}
ENDS = "The data ended after 3 batches on worker 1, but not on worker 0."
SAYS_IN_PASSES = {
    "fit ends earlier": ENDS,
    "evaluate ends earlier": ENDS,
    "validation of other data": "must read the same global batches of the validation, and each trains on",
    "predict ends earlier": ENDS,
    "another order from the second epoch on": "the same global batches in epoch 1 (counted from 0), and each trains on",
    "predict other data": "the first batch is one on worker 0, and another on worker 1",
}
EXAMPLES, BATCH = 64, 16


def numbers() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(EXAMPLES, 3)).astype("float32")
    return x, x.sum(1, keepdims=True)


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


def in_another_order_later(me: int) -> tf.data.Dataset:
    """Each epoch has another order, and the worker draws all but the first by itself."""
    (x, y), passes = numbers(), itertools.count()

    def batches() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        order = np.random.default_rng(me * next(passes)).permutation(EXAMPLES)
        yield from ((x[rows], y[rows]) for rows in order.reshape(-1, BATCH))

    spec = tf.TensorSpec([None, 3], tf.float32), tf.TensorSpec([None, 1], tf.float32)
    return tf.data.Dataset.from_generator(batches, output_signature=spec)


def ending_otherwise(me: int) -> mk.data.Batches:
    x, y = numbers()
    y[-1] += me
    return mk.data.batches(mk.data.arrays(x, y), global_batch_size=BATCH)


def recipe(seed: int) -> mk.data.Batches:
    return mk.data.batches(mk.data.arrays(*numbers()), global_batch_size=BATCH, shuffle=True, seed=seed)


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


def differing(me: int) -> dict[str, Callable[[], Any]]:
    """What differs, and the data of worker `me`."""
    return {
        "a shuffle without a seed": lambda: tf.random.set_seed(me) or shuffled(None),  # as clocks would seed it
        "another seed": lambda: recipe(me),
        "other examples at the end": lambda: ending_otherwise(me),
        "no batch": lambda: of_unknown_length(0 if me else 2),
        "fewer batches": lambda: shuffled(0).take(4 - me),
    }


def in_passes(loop: mk.train.Loop, me: int) -> dict[str, Callable[[], Any]]:
    """Passes over data that differ otherwise than at the first batch of a training."""
    return {
        "fit ends earlier": lambda: loop.fit(of_unknown_length(4 - me), verbose=0),
        "evaluate ends earlier": lambda: loop.evaluate(of_unknown_length(4 - me)),
        "validation of other data": lambda: loop.fit(recipe(0), validation_data=recipe(me), verbose=0),
        "another order from the second epoch on": lambda: loop.fit(in_another_order_later(me), epochs=3, verbose=0),
        "predict ends earlier": lambda: loop.predict(of_unknown_length(4 - me)),
        "predict other data": lambda: loop.predict(recipe(me)),
    }


def asked(strategy: tf.distribute.Strategy) -> dict[str, Any]:
    """What a worker comes to in each case, and its weights in between."""
    me = mk.strategy.worker_index(strategy)
    found: dict[str, Any] = {"trained": trained(strategy), "errors": {}}
    loop = make_loop(strategy)
    found["before"] = weights(loop)
    for what, make in differing(me).items():
        try:
            loop.fit(make(), verbose=0)
        except mk.errors.DataError as error:
            found["errors"][what] = str(error)
            tf.random.set_seed(0)
            continue
        break  # what comes after a training on such data says nothing
    found["after"] = weights(loop)
    if len(found["errors"]) == len(differing(me)):
        loop.fit(augmented(), validation_data=recipe(0), verbose=0)
        found["end"] = weights(loop)
    for what, run in in_passes(loop, me).items():
        try:
            run()
        except mk.errors.DataError as error:
            found["errors"][what] = str(error)
    return found


def test_both_workers_say_what_differs_and_wait_for_nobody(found):
    for worker in found:
        for what, says in {**SAYS, **SAYS_IN_PASSES}.items():
            assert says in worker["errors"].get(what, "no error"), what
        assert all("Set the same seed on every worker" in worker["errors"][what] for what in SAYS)


def test_nothing_was_trained_on_data_that_differ_and_inputs_augmented_differently_are_trained_on(found):
    for worker in found:
        assert worker["after"] == worker["before"] == found[0]["before"]
    assert found[0]["end"] == found[1]["end"] != found[0]["before"]


def test_the_look_at_the_first_batch_changes_nothing(found, strategy_of):
    expected = trained(strategy_of("mirrored", 2))
    assert found[0]["trained"] == found[1]["trained"]
    for a, b in zip(found[0]["trained"], expected, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
