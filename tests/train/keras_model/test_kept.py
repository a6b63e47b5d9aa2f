"""Replicas take turns where they communicate: what a layer keeps of a trace stays that of each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from training_helpers import plain_dataset

import mirrorkit as mk
from mirrorkit._keras import keras

L = keras.layers
pytestmark = pytest.mark.filterwarnings("ignore:A global batch of")


class Keeps(L.Layer):  # type: ignore[name-defined, misc]
    """Reads a tensor of its own again after a layer within it has communicated."""

    def __init__(self) -> None:
        super().__init__()
        self.normalize = L.BatchNormalization(synchronized=True)

    def call(self, x: Any, training: bool = False) -> Any:
        self.inputs_now = x
        return self.normalize(x, training=training) + self.inputs_now


def trained(strategy: tf.distribute.Strategy) -> list[np.ndarray]:
    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(13, 4)).astype("float32"), rng.normal(size=(13, 2)).astype("float32")
    with strategy.scope():
        inputs = keras.Input((4,))
        added = L.ActivityRegularization(l2=0.5)(L.Dense(3)(inputs))  # before replicas communicate
        model = keras.Model(inputs, L.Dense(2)(Keeps()(added)))
        step = mk.train.Step(model, keras.optimizers.SGD(0.1), loss="mse")
    mk.train.Loop(strategy, step).fit(plain_dataset(x, y, batch=8), epochs=1, verbose=0)
    return [variable.numpy() for variable in model.trainable_variables]


def test_added_losses_and_tensors_in_attributes_are_each_replicas_own(strategy_of: Any) -> None:
    expected = trained(strategy_of("one_device", 1))
    for one, two in zip(trained(strategy_of("mirrored", 3)), expected, strict=True):
        np.testing.assert_allclose(one, two, atol=2e-6)  # the same sums, in another order
