"""Whatever the size of the set, of its batches, and the number of replicas: losses, gradients and metrics are NumPy's.

A linear model, its reference in float64. One compiled loop for each strategy serves all examples. In the fast suite it
is that of four replicas, which leaves most shares empty.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import example, given, settings
from hypothesis import strategies as st
from training_helpers import line_net

import mirrorkit as mk
from mirrorkit._keras import keras

_everywhere = pytest.mark.parametrize(
    "where", [("mirrored", 4), pytest.param(("central_storage", 3), marks=pytest.mark.slow)], ids=str
)
_RATE, _DECIMALS = 0.05, 1e-5

pytestmark = pytest.mark.filterwarnings("ignore:A global batch of")


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
def loop_with(strategy_of: Callable[..., Any]) -> Callable[..., mk.train.Loop]:
    """`loop_with(where, drawn)`: the one loop of this strategy, with the weights that were drawn."""
    made: dict[tuple[str, int], mk.train.Loop] = {}

    def get(where: tuple[str, int], drawn: Drawn) -> mk.train.Loop:
        if where not in made:
            strategy = strategy_of(*where)
            with strategy.scope():
                model, optimizer = line_net(), keras.optimizers.SGD(_RATE)
            metrics = [keras.metrics.MeanAbsoluteError("mae"), keras.metrics.RootMeanSquaredError("rmse")]
            step = mk.train.Step(model, optimizer, loss="mse", metrics=metrics, weighted_metrics=["mse"])
            made[where] = mk.train.Loop(strategy, step, steps_per_call=4)
        made[where].step.model.set_weights([drawn.kernel, drawn.bias])
        return made[where]

    return get


def _logs(error: np.ndarray, weight: np.ndarray, losses: list[float], sizes: list[int]) -> dict[str, float]:
    """Keras's names and meanings, from errors [N, 1], and the losses of batches of these sizes."""
    square = error[:, 0] ** 2
    return {
        "loss": np.average(losses, weights=sizes),
        "mae": np.mean(np.abs(error)),
        "rmse": np.sqrt(np.mean(square)),
        "mse": np.sum(weight * square) / np.sum(weight),
    }


_sets = {
    "size": st.integers(1, 40),
    "batch": st.integers(1, 45),
    "weighted": st.booleans(),
    "seed": st.integers(0, 2**16),
}


@_everywhere
@settings(derandomize=True, max_examples=16, deadline=None, database=None)
@given(**_sets)
@example(size=9, batch=8, weighted=False, seed=0)  # a last batch of one: 1, 0, 0, 0
def test_training_is_that_of_numpy_on_whole_batches(
    loop_with: Any, size: Any, batch: Any, where: Any, weighted: Any, seed: Any
) -> None:
    drawn = _draw(size, batch, seed)
    loop = loop_with(where, drawn)
    history = loop.fit(drawn.dataset(weighted), verbose=0).history

    weights = drawn.weight if weighted else np.ones(size)
    kernel, bias = drawn.kernel.astype("float64"), drawn.bias.astype("float64")
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

    for found, expected in zip(loop.step.model.get_weights(), (kernel, bias), strict=True):
        np.testing.assert_allclose(found, expected, rtol=_DECIMALS, atol=_DECIMALS)
    for name, value in _logs(np.concatenate(errors), weights, losses, sizes).items():
        np.testing.assert_allclose(history[name], value, rtol=_DECIMALS, atol=_DECIMALS, err_msg=name)


@_everywhere
@settings(derandomize=True, max_examples=8, deadline=None, database=None)
@given(**_sets)
def test_evaluation_is_that_of_numpy_on_the_whole_set(
    loop_with: Any, size: Any, batch: Any, where: Any, weighted: Any, seed: Any
) -> None:
    drawn = _draw(size, batch, seed)
    found = loop_with(where, drawn).evaluate(drawn.dataset(weighted))
    error = drawn.x.astype("float64") @ drawn.kernel + drawn.bias - drawn.y
    weights = drawn.weight if weighted else np.ones(size)
    expected = _logs(error, weights, [np.mean(weights[:, None] * error**2)], [size])
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=_DECIMALS, atol=_DECIMALS, err_msg=name)


@_everywhere
@settings(derandomize=True, max_examples=8, deadline=None, database=None)
@given(**_sets)
def test_prediction_keeps_every_example_and_its_place(
    loop_with: Any, size: Any, batch: Any, where: Any, weighted: Any, seed: Any
) -> None:
    drawn = _draw(size, batch, seed)
    found = loop_with(where, drawn).predict(drawn.dataset(weighted))
    np.testing.assert_allclose(found, drawn.x @ drawn.kernel + drawn.bias, rtol=_DECIMALS, atol=_DECIMALS)
