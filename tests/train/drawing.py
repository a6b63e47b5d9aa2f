"""Steps that show each number that they draw, for the tests of random numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from training_helpers import Keeps, sequential

import mirrorkit as mk
from mirrorkit._keras import keras

ROWS = 3  # in batches of 2: the last has 1, none for a second replica. Each is a log, which takes long to trace
X = np.arange(10, dtype="float32")[:, None]


def data(kind: str = "batches", rows: int = ROWS) -> Any:
    """Every row once: streamed by a recipe, on the devices, or from a dataset of the user's own of unknown length."""
    x = X[:rows]
    if kind == "dataset":
        return tf.data.Dataset.from_tensor_slices((x, x)).batch(2).filter(lambda *_: True)
    return getattr(mk.data, kind)(mk.data.arrays(x, x), global_batch_size=2)


def shown(batch: Any, drawn: Any, rows: int = ROWS) -> dict[str, Any]:
    """What `from_loss` logs as "d0", "d1", ...: the number that each row has drawn."""
    of_row = tf.one_hot(tf.cast(batch[0][:, 0], tf.int32), rows) * rows * drawn[:, None]
    return {f"d{i}": value for i, value in enumerate(tf.unstack(of_row, axis=1))}


def draws(logs: Mapping[str, Any], before: str = "", rows: int = ROWS) -> np.ndarray:
    """The numbers in the logs, or in a history: [rows] or [rows, epochs]."""
    return np.array([logs[f"{before}d{i}"] for i in range(rows)])


class Noise(keras.layers.Layer):  # type: ignore[name-defined, misc]
    """A layer that always draws: its outputs are random numbers."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.seed = keras.random.SeedGenerator(1)

    def call(self, x: Any) -> Any:
        return 0 * x + keras.random.uniform(tf.shape(x), seed=self.seed)


def noisy_net() -> Any:
    """Random numbers, and a weight."""
    head = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
    return keras.Sequential([keras.Input((1,)), Noise(), head])


def drawing_loop(strategy: tf.distribute.Strategy, **options: Any) -> mk.train.Loop:
    """A loop whose training and validation log each number, and that predicts random numbers."""
    with strategy.scope():
        model, optimizer = noisy_net(), keras.optimizers.SGD(0.0)

    def loss_fn(batch: Any) -> Any:
        drawn = model(batch[0])[:, 0]
        return {"loss": drawn, **shown(batch, drawn)}

    step = mk.train.Step.from_loss(model, optimizer, loss_fn, **options)
    return mk.train.Loop(strategy, step)


def all_draws(strategy: tf.distribute.Strategy, kind: str = "batches") -> dict[str, np.ndarray]:
    """What two epochs with validation draw, an evaluation, and two predictions."""
    loop = drawing_loop(strategy)
    history = loop.fit(data(kind), epochs=2, validation_data=data(kind), verbose=0).history
    return {
        "train": draws(history),
        "val": draws(history, "val_"),
        "again": draws(loop.evaluate(data(kind))),
        "predict": np.concatenate([loop.predict(data(kind)), loop.predict(data(kind))], axis=1),
    }


def assert_distinct(found: Mapping[str, np.ndarray]) -> None:
    """No number twice; but an evaluation at the same step repeats that of the last epoch."""
    np.testing.assert_array_equal(found["again"], found["val"][:, -1])
    numbers = np.concatenate([np.ravel(found[name]).astype("float64") for name in ("train", "val", "predict")])
    assert numbers.size == 6 * ROWS
    counts = {name: np.unique(np.round(found[name], 5)).size for name in ("train", "val", "predict")}
    assert np.unique(np.round(numbers, 6)).size == numbers.size, counts


def state_after(strategy: tf.distribute.Strategy) -> list[float]:
    """What layers that assign in every pass have after an evaluation and a prediction, the last batch of one row."""
    mean = Keeps(lambda mean, x: 0.5 * mean + 0.5 * keras.ops.mean(x), always=True, name="mean")
    calls = Keeps(lambda calls, x: calls + 1, dtype="int32", always=True, name="calls")
    with strategy.scope():
        model = sequential((1,), mean, calls, keras.layers.Dense(1))
        step = mk.train.Step(model, keras.optimizers.SGD(0.0), loss="mse")
    loop = mk.train.Loop(strategy, step)
    few = mk.data.batches(mk.data.arrays(X[:9], X[:9]), global_batch_size=4)
    loop.evaluate(few)
    loop.predict(few)
    return [float(variable.value.numpy()) for variable in model.non_trainable_variables]
