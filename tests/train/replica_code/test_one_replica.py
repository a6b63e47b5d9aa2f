"""A user's code sees one replica: what it divides by their number, as TensorFlow's guide does, is the whole batch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from training_helpers import fit_compiled, plain_dataset

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.train.replica_code import replaced

_X = np.random.default_rng(0).normal(size=(24, 3)).astype("float32")
_Y = _X[:, :1] ** 2
_ROWS = keras.losses.MeanSquaredError(reduction="none")


def _in_every_way(values: tf.Tensor) -> tf.Tensor:
    """Each has a weight of its own, so that no error makes up for another."""
    mean, column = tf.reduce_mean(values), values[:, tf.newaxis]
    total = keras.losses.MeanAbsoluteError(reduction="sum")(tf.zeros_like(column), column)
    return (
        tf.nn.compute_average_loss(values, global_batch_size=12)
        + 0.1 * tf.nn.compute_average_loss(values)
        + 0.2 * tf.nn.scale_regularization_loss(mean)
        + 0.4 * mean / tf.distribute.get_strategy().num_replicas_in_sync
        + 0.8 * mean / tf.distribute.get_replica_context().num_replicas_in_sync
        + 1.6 * total / tf.cast(tf.shape(values)[0], values.dtype)
    )


class OfTheGuide(keras.Model):  # type: ignore[misc, name-defined]
    """TensorFlow's guide of custom training loops, as a `train_step`."""

    def __init__(self, reduce: Callable[[tf.Tensor], tf.Tensor]) -> None:
        super().__init__()
        self.dense, self.reduce = keras.layers.Dense(1), reduce

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return self.dense(x)

    def train_step(self, batch: Any) -> dict[str, tf.Tensor]:
        x, y = batch
        with tf.GradientTape() as tape:
            loss = self.reduce(_ROWS(y, self(x, training=True)))
        weights = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return {"loss": loss}


class Scaled(keras.layers.Layer):  # type: ignore[misc, name-defined]
    """A layer that adds a loss as the guide does."""

    def call(self, x: tf.Tensor) -> tf.Tensor:
        self.add_loss(tf.nn.scale_regularization_loss(tf.reduce_mean(x**2)))
        return x

    def compute_output_shape(self, shape: Any) -> Any:  # else Keras calls it outside of a replica
        return shape


def _loss_of_rows(y: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
    return _ROWS(y, y_pred) / tf.distribute.get_strategy().num_replicas_in_sync


MODELS: dict[str, Callable[[], Any]] = {
    "train_step": lambda: OfTheGuide(_in_every_way),
    "losses of a layer and of compile": lambda: keras.Sequential([keras.Input((3,)), Scaled(), keras.layers.Dense(1)]),
}


def _data() -> Any:
    return plain_dataset(_X, _Y, batch=12)


@pytest.mark.parametrize("name", MODELS)
def test_replicas_are_not_divided_by(strategy_of: Any, name: str) -> None:
    def compiled() -> Any:
        model = MODELS[name]()
        model.compile(keras.optimizers.SGD(0.05), _loss_of_rows)
        return model

    fit_compiled(strategy_of("mirrored", 2), compiled, _data())
    assert strategy_of("mirrored", 2).num_replicas_in_sync == 2


class OfAllReplicas(keras.layers.Layer):  # type: ignore[misc, name-defined]
    """A layer that wants a mean over all replicas."""

    def call(self, x: tf.Tensor) -> tf.Tensor:
        context = tf.distribute.get_replica_context()
        return x - context.all_reduce(tf.distribute.ReduceOp.MEAN, tf.reduce_mean(x, 0))

    def compute_output_shape(self, shape: Any) -> Any:
        return shape


@pytest.mark.parametrize(("own", "unchecked"), [(False, ()), (True, ("rows",))], ids=["layer", "train_step"])
def test_a_reduction_is_refused(strategy_of: Any, own: bool, unchecked: tuple[str, ...]) -> None:
    strategy = strategy_of("mirrored", 2)
    with strategy.scope():
        if own:
            model = OfTheGuide(lambda rows: tf.reduce_mean(OfAllReplicas()(rows[:, tf.newaxis])))
        else:
            model = keras.Sequential([keras.Input((3,)), OfAllReplicas(), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    step = mk.train.Step.from_compiled(model, unchecked=unchecked)
    with pytest.raises(mk.errors.StepError, match="all_reduce"):
        mk.train.Loop(strategy, step).fit(_data(), verbose=0)


class Summarizes(keras.layers.Layer):  # type: ignore[misc, name-defined]
    def call(self, x: tf.Tensor) -> tf.Tensor:
        tf.summary.scalar("mean", tf.reduce_mean(x), step=0)
        return x

    def compute_output_shape(self, shape: Any) -> Any:
        return shape


def test_summaries_of_a_layer_are_told_of_once(make_loop: Any, caplog: pytest.LogCaptureFixture) -> None:
    replaced.warn_of_summaries.cache_clear()
    net = lambda: keras.Sequential([keras.Input((3,)), Summarizes(), keras.layers.Dense(1)])  # noqa: E731
    make_loop(("mirrored", 2), net).fit(_data(), verbose=0)
    assert caplog.text.count("tf.summary") == 1
