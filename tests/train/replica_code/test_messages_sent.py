"""How many messages a step of Keras's own code sends: one for each update, and one for what is logged after it."""

from __future__ import annotations

from typing import Any

import own_models
import pytest
import tensorflow as tf
from training_helpers import plain_dataset

from mirrorkit._keras import keras
from mirrorkit.train.reduce import reduction
from mirrorkit.train.step.global_batch import HostBatch
from mirrorkit.train.step.keras_step import KerasStep
from mirrorkit.variables import copies


def _normalized() -> Any:
    """Its layer state and the kernel, which it assigns, follow from the weights: the same on all replicas."""
    layers = keras.layers
    model = keras.Sequential([keras.Input((6,)), layers.SpectralNormalization(layers.Dense(8)), layers.Dense(3)])
    model.compile("adam", "mse", metrics=["mae"])
    return model


class Standardized(keras.Sequential):  # type: ignore[misc]
    """Its statistics and the sum of its losses go with the gradients; it logs that, and a value after the update."""

    def __init__(self) -> None:
        super().__init__([keras.Input((6,)), keras.layers.BatchNormalization(), keras.layers.Dense(3)])

    def train_step(self, data: Any) -> Any:
        return super().train_step(data) | {"rate": self.optimizer.learning_rate}


def _standardized() -> Any:
    model = Standardized()
    model.compile("adam", "mse")
    return model


MODELS = own_models.MODELS | {"normalized": _normalized, "standardized": _standardized}
UPDATES = {"normalized": 1, "mean_teacher": 1, "critic": 1, "wgan": 3}
MESSAGES = {"standardized": 1} | {name: updates + 1 for name, updates in UPDATES.items()}
LARGE = ("wgan", "critic")  # tell the same of more updates
NAMES = [pytest.param(name, marks=pytest.mark.slow) if name in LARGE else name for name in MESSAGES]


@pytest.mark.parametrize("name", NAMES)
def test_a_message_for_each_update_and_one_for_the_logs(
    loop_over: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    loop, sent = loop_over(MODELS[name]), list[Any]()
    spec = plain_dataset(*own_models.data(), batch=16).element_spec
    built = loop.step.for_loop(loop.strategy, spec)
    assert type(built) is KerasStep
    built.prepare(spec)
    send = reduction._sum
    monkeypatch.setattr(reduction, "_sum", lambda message: sent.append(message) or send(message))
    tf.function(lambda *batch: built.train([HostBatch(batch)]), autograph=False).get_concrete_function(*spec)
    assert len(sent) == 2 * MESSAGES[name]  # of two replicas


class KeepsASize(keras.Sequential):  # type: ignore[misc]
    """Where the size of a batch is static, that of a share is a constant, and another one on the next replica."""

    def __init__(self) -> None:
        super().__init__([keras.Input((6,)), keras.layers.Dense(3)])
        self.rows = self.add_weight(shape=(), initializer="zeros", trainable=False, name="rows")

    def train_step(self, data: Any) -> Any:
        self.rows.assign(tf.cast(tf.shape(data[0])[0], tf.float32))
        return super().train_step(data) | {"rate": self.optimizer.learning_rate}


def test_constants_of_unequal_shares_are_combined(loop_over: Any) -> None:
    def made() -> Any:
        model = KeepsASize()
        model.compile("sgd", "mse")
        return model

    loop = loop_over(made, unchecked="rows")
    data = tf.data.Dataset.from_tensor_slices(own_models.data(15))
    loop.fit(data.batch(15, drop_remainder=True), verbose=0)
    expected = (8 * 8 + 7 * 7) / 15
    assert [float(copy) for copy in copies(loop.step.model.rows)] == pytest.approx([expected, expected])
