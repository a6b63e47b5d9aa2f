"""Dense nets: regressions and classifiers."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from entries import Fit, Rows, dense, logits, net, split

from mirrorkit._keras import keras

K = keras.ops


def regression(rng: np.random.Generator, count: int) -> Rows:
    x = rng.normal(size=(count, 4)).astype("float32")
    return x, (x @ np.float32([[1], [-2], [0.5], [0]]) + 0.1 * rng.normal(size=(count, 1))).astype("float32")


def classes(rng: np.random.Generator, count: int) -> Rows:
    x = rng.normal(size=(count, 4)).astype("float32")
    return x, np.argmax(x[:, :3] + 0.5 * rng.normal(size=(count, 3)), 1)


def one_hot(rng: np.random.Generator, count: int) -> Rows:
    x, y = classes(rng, count)
    return x, np.eye(3, dtype="float32")[y]


def itself(rng: np.random.Generator, count: int) -> Rows:
    x = np.tanh(rng.normal(size=(count, 2)) @ rng.normal(size=(2, 8))).astype("float32")
    return x, x


def counts(rng: np.random.Generator, count: int) -> Rows:
    """Whole numbers [N, 1] to be predicted, not classes."""
    x, y = regression(rng, count)
    return x, rng.poisson(np.exp(0.3 * y))


class Squared(keras.losses.Loss):
    """A loss that subtracts as it finds them: [N, 1] - [N, 1]."""

    def call(self, y: Any, y_pred: Any) -> Any:
        return K.mean((y - y_pred) ** 2, axis=-1)


def error_map(y: Any, y_pred: Any) -> Any:
    """A value for each number of an example."""
    return K.abs(y - y_pred) ** 1.5


class Residual(keras.layers.Layer):
    """A dense block with a shortcut, as a custom layer."""

    def __init__(self, units: int) -> None:
        super().__init__()
        self.first, self.second = keras.layers.Dense(units, "gelu"), keras.layers.Dense(units)
        self.norm = keras.layers.LayerNormalization()

    def build(self, shape: Any) -> None:
        self.first.build(shape)
        self.second.build((*shape[:-1], self.first.units))
        self.norm.build(shape)

    def call(self, x: Any) -> Any:
        return self.norm(x + self.second(self.first(x)))


class TwoRoads(keras.Model):
    """A subclassed model that is built by its owner."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = keras.layers.Dense(6, "tanh"), keras.layers.Dense(6, "sigmoid")
        self.head = keras.layers.Dense(3)

    def call(self, x: Any) -> Any:
        return self.head(self.left(x) * self.right(x))


def two_roads() -> Any:
    model = TwoRoads()
    model(tf.zeros((1, 4)))
    return model


_m, _o = keras.metrics, keras.optimizers
ENTRIES = [
    Fit(name="linear regression", data=split(regression), model=net(dense(1)), metrics=lambda: ["mae"]),
    Fit(
        name="residual blocks as custom layers",
        data=split(classes),
        model=net(lambda: Residual(4), lambda: Residual(4), dense(3)),
        optimizer=lambda: _o.SGD(0.05, momentum=0.9),
        loss=logits,
        metrics=lambda: ["accuracy"],
    ),
    Fit(
        name="subclassed model, built",
        data=split(classes),
        model=two_roads,
        optimizer=lambda: _o.Nadam(0.01),
        loss=logits,
        metrics=lambda: ["sparse_categorical_accuracy"],
    ),
    Fit(
        name="Poisson regression on whole numbers [N]",
        data=lambda: tuple((x, y[:, 0]) for x, y in split(counts)()),
        model=net(dense(8, "tanh"), dense(1, "exponential")),
        loss=lambda: "poisson",
        metrics=lambda: ["mse"],
    ),
    Fit(
        name="a Loss subclass on whole numbers [N, 1]",
        data=split(counts),
        model=net(dense(8, "tanh"), dense(1)),
        loss=lambda: Squared(),
        refused="compares every target with every output",
    ),
    Fit(
        name="a loss function that returns a value for each number",
        data=split(itself),
        model=net(dense(4, "tanh"), dense(8), shape=(8,)),
        loss=lambda: error_map,
        metrics=lambda: [_m.RootMeanSquaredError(name="rmse"), _m.CosineSimilarity(name="cosine")],
    ),
]
