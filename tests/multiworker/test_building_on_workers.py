"""Two workers build a model from their first data as two replicas of one process do, and refuse the same shapes."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import mirrorkit as mk
from mirrorkit.errors import StepError

pytestmark = pytest.mark.slow  # two workers


def trained(strategy: tf.distribute.Strategy) -> dict[str, Any]:
    """The history and the weights of a training of a model that is not built, and what a second one raises."""
    x = np.random.default_rng(0).normal(size=(50, 4)).astype("float32")

    def fitted(y: Any, units: int, batch: int) -> Any:
        keras.utils.set_random_seed(0)
        with strategy.scope():
            layers = [keras.layers.Dense(5, activation="tanh"), keras.layers.Dropout(0.3), keras.layers.Dense(units)]
            model, optimizer = keras.Sequential(layers), keras.optimizers.SGD(0.1)
        data = mk.data.batches(mk.data.arrays(x, y), global_batch_size=batch, shuffle=True)
        loop = mk.train.Loop(strategy, mk.train.Step(model, optimizer, loss="mse"))
        history = loop.fit(data, epochs=2, validation_data=data, verbose=0).history
        return {"history": history, "weights": [weight.tolist() for weight in model.get_weights()]}

    found = fitted(x[:, :1], 1, 12)
    with pytest.raises(StepError) as error:
        fitted(x[:, 0], 10, 20)  # ten rows on each replica
    return {**found, "error": str(error.value)}


@pytest.fixture(scope="module")
def found(on_workers: Any) -> list[dict[str, Any]]:
    return on_workers(trained)


def test_two_workers_do_what_two_replicas_do(found: Any, strategy_of: Any) -> None:
    zero, one = found
    assert zero == one
    assert "does not take targets [N] for outputs [N, 10]" in zero["error"]
    expected = trained(strategy_of("mirrored", 2))
    assert zero["error"] == expected["error"]
    assert zero["history"].keys() == expected["history"].keys()
    for name, values in zero["history"].items():
        np.testing.assert_allclose(values, expected["history"][name], rtol=1e-5, err_msg=name)
    for weight, other in zip(zero["weights"], expected["weights"], strict=True):
        np.testing.assert_allclose(weight, other, atol=1e-6)
