"""What the tests of the check of the first batch share: data, small nets, and the check itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from training_helpers import classifier, sequential

from mirrorkit._keras import keras
from mirrorkit.train.first_batch.check import first_batch_check

L = keras.layers
ops = keras.ops
TWO = ("mirrored", 2)

rng = np.random.default_rng(0)
X = rng.normal(size=(24, 4)).astype("float32")
BINARY = (X[:, :1] > 0).astype("float32")
CLASSES = np.arange(24) % 3
ONE_HOT = np.eye(3, dtype="float32")[CLASSES]
POSITIVE = np.abs(X[:, 1:2]) + 0.5


def check(loop: Any, *batch: Any) -> None:
    """What `fit` does before its first step."""
    check_batch = first_batch_check(loop.step.for_loop(loop.strategy))
    assert check_batch is not None
    check_batch(tf.nest.map_structure(tf.constant, batch))


def binary_net() -> Any:
    return sequential((4,), L.Dense(1, activation="sigmoid"))


def class_net() -> Any:
    return classifier(3, "softmax")


def token_net() -> Any:
    return sequential((None, 4), L.Dense(5))


def f1(y: Any, y_pred: Any) -> Any:
    hits = ops.sum(y * ops.round(y_pred))
    return 2 * hits / (ops.sum(y) + ops.sum(ops.round(y_pred)) + 1e-7)


class AddsInTraining(L.Layer):  # type: ignore[name-defined]
    """Adds a loss in training: what `reduce` makes of the squares of its inputs."""

    def __init__(self, reduce: Any) -> None:
        super().__init__()
        self.reduce = reduce

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            self.add_loss(0.1 * self.reduce(ops.square(x)))
        return x
