"""Whatever the size of the set, of its batches, and the number of replicas: losses, gradients and metrics are NumPy's.

A linear model, its reference in float64. One compiled loop on four replicas, which leaves most shares empty, serves all
examples.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import example, given, settings, strategies as st
from training_helpers import line_net

import mirrorkit as mk
from mirrorkit._keras import keras

_RATE, _DECIMALS = 0.05, 1e-5


class Drawn(NamedTuple):
    """A random set, its first weights, and how it is cut into batches."""

    x: np.ndarray
    y: np.ndarray
    weight: np.ndarray
    kernel: np.ndarray
    bias: np.ndarray
    batch: int

    def dataset(self, weighted: bool) -> tf.data.Dataset:
        """The set in global batches."""
        parts = (self.x, self.y, self.weight) if weighted else (self.x, self.y)
        return tf.data.Dataset.from_tensor_slices(parts).batch(self.batch)


def _draw(size: int, batch: int, seed: int) -> Drawn:
    rng = np.random.default_rng(seed)

    def normal(*shape: int) -> np.ndarray:
        return rng.normal(size=shape).astype("float32")

    weight = rng.uniform(0, 2, size).astype("float32")
    return Drawn(normal(size, 4), normal(size, 1), weight, normal(4, 1), normal(1), batch)


@pytest.fixture(scope="module")
def loop(strategy_of: Callable[..., Any]) -> mk.train.Loop:
    strategy = strategy_of("mirrored", 4)
    with strategy.scope():
        model, optimizer = line_net(), keras.optimizers.SGD(_RATE)
    metrics = [keras.metrics.MeanAbsoluteError("mae"), keras.metrics.RootMeanSquaredError("rmse")]
    step = mk.train.Step(model, optimizer, loss="mse", metrics=metrics, weighted_metrics=["mse"])
    return mk.train.Loop(strategy, step, steps_per_call=4)


def _logs(error: np.ndarray, weight: np.ndarray, losses: list[float], sizes: list[int]) -> dict[str, float]:
    """Keras's names and meanings, from errors [N, 1], and the losses of batches of these sizes."""
    square = error[:, 0] ** 2
    return {
        "loss": np.average(losses, weights=sizes),
        "mae": np.mean(np.abs(error)),
        "rmse": np.sqrt(np.mean(square)),
        "mse": np.sum(weight * square) / np.sum(weight),
    }


@pytest.mark.slow
@settings(derandomize=True, max_examples=8, deadline=None, database=None)
@given(size=st.integers(1, 40), batch=st.integers(1, 45), weighted=st.booleans(), seed=st.integers(0, 2**16))
@example(size=9, batch=8, weighted=False, seed=0)  # a last batch of one: 1, 0, 0, 0
def test_evaluation_prediction_and_training_are_those_of_numpy(
    loop: Any, size: int, batch: int, weighted: bool, seed: int
) -> None:
    drawn = _draw(size, batch, seed)
    data = drawn.dataset(weighted)
    loop.step.model.set_weights([drawn.kernel, drawn.bias])
    evaluated, predicted = loop.evaluate(data), loop.predict(data)
    history = loop.fit(data, verbose=0).history

    weights = drawn.weight if weighted else np.ones(size)
    kernel, bias = drawn.kernel.astype("float64"), drawn.bias.astype("float64")
    outputs = drawn.x.astype("float64") @ kernel + bias
    _assert_close({"outputs": predicted}, {"outputs": outputs})
    error = outputs - drawn.y
    _assert_close(evaluated, _logs(error, weights, [np.mean(weights[:, None] * error**2)], [size]))

    errors, losses, sizes = [], [], []
    for first in range(0, size, batch):
        rows = slice(first, first + batch)
        x, weight = drawn.x[rows].astype("float64"), weights[rows, None]
        error = x @ kernel + bias - drawn.y[rows]
        errors.append(error)
        losses.append(np.mean(weight * error**2))
        sizes.append(len(x))
        kernel -= _RATE * 2 * np.mean(weight * error * x, 0)[:, None]
        bias -= _RATE * 2 * np.mean(weight * error, 0)
    _assert_close(dict(enumerate(loop.step.model.get_weights())), {0: kernel, 1: bias})
    _assert_close(history, _logs(np.concatenate(errors), weights, losses, sizes))


def _assert_close(found: Any, expected: Any) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(np.squeeze(found[name]), np.squeeze(value), _DECIMALS, _DECIMALS, err_msg=str(name))
