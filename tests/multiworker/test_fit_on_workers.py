"""`mk.fit` on two workers, called with what Keras's `fit` takes, against Keras on one device.

And callbacks of Keras on the first worker alone.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import mirrorkit as mk
from mirrorkit.errors import StepError

pytestmark = pytest.mark.slow

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(70, 3)).astype("float32"), RNG.normal(size=(70, 2)).astype("float32")


PADDED = np.concatenate([X[:8], np.zeros((8, 3), "float32"), X[:9]])  # of a batch, the second worker has zeros alone


class Pieces(keras.utils.PyDataset):
    def __len__(self) -> int:
        return 3

    def __getitem__(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        return X[25 * number : 25 * number + 25], Y[25 * number : 25 * number + 25]


def trained(model: Any, fit: Any, evaluate: Any, predict: Any) -> list[Any]:
    """What a script shows: logs, weights, results, outputs."""
    asked = {"epochs": 2, "shuffle": False, "verbose": 0}
    dataset = tf.data.Dataset.from_tensor_slices((X, Y)).batch(24)
    fits = [
        fit(model, X, Y, batch_size=16, validation_split=0.3, **asked),
        fit(model, Pieces(), **asked),
        fit(model, X, Y, batch_size=16, steps_per_epoch=2, **asked),
        fit(model, Pieces(), steps_per_epoch=1, **asked),
        fit(model, dataset, validation_data=(X[:20], Y[:20]), verbose=0),
    ]
    results = evaluate(model, X, Y, verbose=0)
    return [*(one.history for one in fits), model.get_weights(), results, predict(model, X, verbose=0)]


def net() -> Any:
    layers = [keras.layers.Dense(5, "tanh"), keras.layers.Dense(2)]
    model = keras.Sequential([keras.Input((3,)), *layers])
    weights = np.random.default_rng(1)
    model.set_weights([weights.normal(size=weight.shape) for weight in model.get_weights()])
    model.compile("adam", "mse", metrics=["mae"])
    return model


def asked(strategy: tf.distribute.Strategy) -> dict[str, Any]:
    with strategy.scope():
        model = net()
    found = {"trained": trained(model, mk.fit, mk.evaluate, mk.predict)}
    found["seed"] = mk.fit(model, X, Y, verbose=0).report.seed
    stop = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: setattr(model, "stop_training", epoch == 1))
    found["epochs"] = mk.fit(model, X, Y, epochs=9, callbacks=[stop][: mk.strategy.is_chief(strategy)], verbose=0).epoch
    for _ in range(2):
        found["padded"] = mk.predict(model, PADDED, batch_size=16, verbose=0)
    found["expected"] = model(PADDED).numpy()
    found["batches"] = []
    look = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: found["batches"].append(batch))
    mk.fit(model, X, Y, batch_size=16, callbacks=[look][: mk.strategy.is_chief(strategy)], verbose=0)
    try:
        mk.fit(model, ((X[:5], Y[:5]) for _ in range(3)), verbose=0)
    except StepError as error:
        found["generator"] = str(error)
    return found


def test_workers_give_what_keras_gives_on_one_device(found: list[dict[str, Any]]) -> None:
    model = keras.Model
    expected = trained(net(), model.fit, model.evaluate, model.predict)
    for worker in found:
        tf.nest.map_structure(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6), worker["trained"], expected
        )


def test_a_worker_whose_rows_are_all_alike_predicts(found: list[dict[str, Any]]) -> None:
    for worker in found:
        np.testing.assert_allclose(worker["padded"], worker["expected"], rtol=1e-5, atol=1e-6)


def test_workers_agree_on_the_order(found: list[dict[str, Any]]) -> None:
    assert found[0]["seed"] == found[1]["seed"]


def test_a_callback_of_one_worker_stops_all_and_gives_all_calls_of_one_step(found: list[dict[str, Any]]) -> None:
    assert [worker["epochs"] for worker in found] == [[0, 1], [0, 1]]
    assert [worker["batches"] for worker in found] == [[0, 1, 2, 3, 4], []]


def test_a_generator_is_refused(found: list[dict[str, Any]]) -> None:
    assert all("mk.data.from_function" in worker["generator"] for worker in found)
