"""Two workers check later at the same steps: when the chief has time for it, and in no message of its own."""

from __future__ import annotations

import re
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import mirrorkit as mk
from mirrorkit.train.loop import callbacks

pytestmark = pytest.mark.slow


class CentersLater(keras.layers.Layer):
    """After some steps, which it counts."""

    def __init__(self, after: float) -> None:
        super().__init__()
        self.after = after

    def build(self, shape: Any) -> None:
        self.steps = self.add_weight(shape=(), initializer="zeros", trainable=False, name="steps")

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            self.steps.assign(self.steps + 1.0)
            x -= tf.where(self.steps > self.after, 0.5, 0.0) * tf.reduce_mean(x, axis=0, keepdims=True)
        return x


def trained(strategy: tf.distribute.Strategy, after: float = 1e9, hurried: int | None = None) -> tuple[int, str, int]:
    """The step at which a fit ends, the error, and the messages in which workers agree; one of them has no time."""
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8), CentersLater(after), keras.layers.Dense(1)])
        step = mk.train.Step(model, keras.optimizers.SGD(0.01), loss="mse")
    loop = mk.train.Loop(strategy, step, steps_per_call=4)
    if mk.strategy.worker_index(strategy) == hurried:
        loop._passes.later._spent = 1e9
    x = np.random.default_rng(0).normal(size=(24, 4)).astype("float32")
    data = mk.data.batches(mk.data.arrays(x, x[:, :1]), global_batch_size=8)
    sent: list[int] = []
    agree = callbacks.arrays_of_all_workers

    def noted(strategy: Any, value: np.ndarray) -> np.ndarray:
        sent.append(len(value))
        return agree(strategy, value)

    callbacks.arrays_of_all_workers = noted
    try:
        loop.fit(data, epochs=6, verbose=0)
    except mk.errors.StepError as error:
        return loop.position.steps, str(error), len(sent)
    finally:
        callbacks.arrays_of_all_workers = agree
    return loop.position.steps, str(loop._passes.later._right), len(sent)


def asked(strategy: tf.distribute.Strategy) -> dict[str, tuple[int, str, int]]:
    """What comes of it in each case."""
    return {
        "right": trained(strategy),
        "wrong": trained(strategy, after=3.5),
        "the other has no time": trained(strategy, hurried=1),
        "the chief has no time": trained(strategy, hurried=0),
    }


def test_they_agree(found: list[dict[str, tuple[int, str, int]]]) -> None:
    for of_worker in found:
        assert of_worker["right"] == (18, "12", 12)  # one message for each call, and for each epoch
        steps, error, _ = of_worker["wrong"]
        assert steps == 12
        assert re.search("the check at step 0 found no difference.*depends on the other examples", error)
        assert of_worker["the other has no time"] == (18, "12", 12)
        assert of_worker["the chief has no time"] == (18, "0", 12)
