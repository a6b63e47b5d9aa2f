"""Models with their own train_step on two workers: what Keras's `fit` makes of them on one device."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import mirrorkit as mk
from mirrorkit.variables import copies

sys.path.append(str(Path(__file__).parents[1] / "train" / "replica_code"))
import own_models

pytestmark = pytest.mark.slow
NAMES = ("wgan", "distillation", "mean_teacher", "vae")
Trained = tuple[dict[str, Any], list[np.ndarray]]


def asked(strategy: tf.distribute.Strategy) -> dict[str, Trained]:
    """The history and the weights of each model."""
    found = {}
    for name in NAMES:
        keras.utils.set_random_seed(0)
        with strategy.scope():
            model = own_models.MODELS[name]()
        loop = mk.train.Loop(strategy, mk.train.Step.from_compiled(model))
        data = mk.data.batches(mk.data.arrays(*own_models.data()), global_batch_size=16)  # each reads its own rows
        history = loop.fit(data, epochs=3, verbose=0).history
        found[name] = history, [copies(weight)[0].numpy() for weight in model.weights]
    return found


def test_two_workers_train_as_keras_does(found: list[dict[str, Trained]]) -> None:
    np.testing.assert_equal(*found)
    for name, (history, weights) in found[0].items():
        expected_history, expected = _by_keras(name)
        for log, values in expected_history.items():
            np.testing.assert_allclose(history[log], values, rtol=1e-5, atol=1e-5)
        for weight, other in zip(weights, expected, strict=True):
            np.testing.assert_allclose(weight, other, rtol=1e-5, atol=1e-5)


def _by_keras(name: str) -> Trained:
    keras.utils.set_random_seed(0)
    model = own_models.MODELS[name]()
    data = tf.data.Dataset.from_tensor_slices(own_models.data()).batch(16)
    return model.fit(data, epochs=3, verbose=0).history, [weight.numpy() for weight in model.weights]
