"""Two workers evaluate and predict with a step that has no optimizer."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import mirrorkit as mk

pytestmark = pytest.mark.slow


def inferred(strategy: tf.distribute.Strategy) -> Any:
    """Predictions, metrics, and what they are by Keras's model and NumPy."""
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2), keras.layers.BatchNormalization()])
    x = np.random.default_rng(0).normal(size=(45, 4)).astype("float32")
    data = mk.data.batches(mk.data.arrays(x, x[:, :2]), global_batch_size=8)
    loop = mk.train.Loop(strategy, mk.train.Step(model, metrics=["mae"]))
    expected = np.asarray(model(x, training=False))
    return loop.predict(data), loop.evaluate(data), expected, float(np.abs(expected - x[:, :2]).mean())


@pytest.fixture(scope="module")
def found(on_workers: Any) -> Any:
    return on_workers(inferred)


def test_both_workers_have_all(found: Any) -> None:
    assert len(found) == 2
    for predicted, logs, expected, mae in found:
        np.testing.assert_allclose(predicted, expected, rtol=1e-5, atol=1e-6)
        assert logs == {"mae": pytest.approx(mae, rel=1e-5)}
