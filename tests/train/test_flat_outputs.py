"""Targets and outputs without an axis of their own, [batch]: as in Keras's fit, or refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from training_helpers import fit_both, plain_dataset, sequential

from mirrorkit._keras import keras
from mirrorkit.errors import StepError

L = keras.layers
pytestmark = [
    pytest.mark.filterwarnings("ignore:A global batch of"),
    pytest.mark.filterwarnings("ignore:`shuffle=True` was passed"),
]


def _net() -> Any:
    return sequential((4,), L.Dense(3, activation="tanh"), L.Dense(1), L.Reshape(()))


def _probability() -> Any:
    return sequential((4,), L.Dense(1, activation="sigmoid"), L.Reshape(()))


def test_a_value_for_each_example(make_loop: Any, numbers: Any) -> None:
    data = plain_dataset(numbers[0], numbers[1][:, 0], batch=25)  # unequal shares, and a smaller last batch
    fit_both(make_loop, _net, data, fit={"validation_data": data}, loss=lambda y, p: keras.ops.square(y - p))


def test_a_loss_that_is_no_mean_over_the_batch(make_loop: Any, numbers: Any) -> None:
    def root(y: Any, y_pred: Any) -> Any:
        return keras.ops.sqrt(keras.ops.mean((y - y_pred) ** 2, axis=-1))

    data = plain_dataset(numbers[0], (numbers[1][:, 0] > 0).astype("float32"), batch=20)
    with pytest.raises(StepError, match=r"The loss \(root\) .*one value per example"):
        make_loop(("mirrored", 2), _probability, loss=root).fit(data, verbose=0)
    fit_both(make_loop, _probability, data, where=("one_device", 1), loss=root)


def test_weights_of_examples(make_loop: Any, numbers: Any) -> None:
    weight = np.linspace(0, 2, 60).astype("float32")
    data = plain_dataset(numbers[0], numbers[1][:, 0], weight, batch=20)
    with pytest.raises(StepError, match=r"mean_squared_error.*\[batch, 1\]"):
        make_loop(("mirrored", 2), _net).fit(data, verbose=0)


def test_one_number_that_is_the_mean(make_loop: Any, numbers: Any) -> None:
    def loss(y: Any, y_pred: Any) -> Any:
        return keras.ops.mean(keras.ops.square(y - y_pred))

    data = plain_dataset(*numbers, batch=25)
    fit_both(make_loop, lambda: sequential((4,), L.Dense(1)), data, loss=loss)


def test_a_metric_that_is_one_number_for_a_batch(make_loop: Any, numbers: Any) -> None:
    data = plain_dataset(numbers[0], numbers[1][:, 0], batch=25)
    fit_both(make_loop, _net, data, fit={"validation_data": data}, metrics=["mae"])
