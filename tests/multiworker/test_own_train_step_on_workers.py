"""Models with their own train_step on two workers: what Keras's `fit` makes of them on one device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import own_train_step
import pytest
import tensorflow as tf
from launching import launched

pytestmark = pytest.mark.slow


def test_two_workers_train_as_keras_does(tmp_path: Path) -> None:
    launched(Path(own_train_step.__file__), tmp_path, folder=tmp_path)
    one, other = (dict(np.load(tmp_path / f"found{worker}.npz")) for worker in (0, 1))
    np.testing.assert_equal(one, other)
    for name in own_train_step.NAMES:
        history, weights = _by_keras(name)
        for log, values in history.items():
            np.testing.assert_allclose(one[f"{name}/logs/{log}"], values, rtol=1e-5, atol=1e-5)
        for i, weight in enumerate(weights):
            np.testing.assert_allclose(one[f"{name}/{i}"], weight, rtol=1e-5, atol=1e-5)


def _by_keras(name: str) -> tuple[dict[str, Any], list[np.ndarray]]:
    own_models = own_train_step.own_models
    keras.utils.set_random_seed(0)
    model = own_models.MODELS[name]()
    data = tf.data.Dataset.from_tensor_slices(own_models.data()).batch(16)
    return model.fit(data, epochs=3, verbose=0).history, [weight.numpy() for weight in model.weights]
