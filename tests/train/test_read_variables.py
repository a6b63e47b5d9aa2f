"""A loss, a metric or a learning rate that reads a variable sees its value at each step, as in Keras."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from training_helpers import largest_difference, sequential

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.errors import StepError

L = keras.layers
X = np.random.default_rng(0).normal(size=(32, 2)).astype("float32")
Y = X.sum(1, keepdims=True)


def data() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(8)


def each_epoch(variable: Any, value: Callable[[int], float]) -> Any:
    return keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs=None: variable.assign(value(epoch)))


def mean_square(y: Any, y_pred: Any) -> Any:
    return tf.reduce_mean((y - y_pred) ** 2, -1)


class Halving(keras.optimizers.schedules.LearningRateSchedule):
    def __init__(self, rate: Any) -> None:
        self.rate = rate

    def __call__(self, step: Any) -> Any:
        return self.rate / (2 + tf.cast(step, tf.float32))

    def get_config(self) -> dict[str, Any]:
        return {}


def setting(rate: str) -> tuple[Any, dict[str, Any], list[Any]]:
    """An optimizer, what else is compiled, and callbacks: each of them reads variables."""
    variable, of_keras = tf.Variable(0.3), keras.Variable(0.5)
    optimizer = keras.optimizers.SGD(Halving(variable) if rate == "schedule" else lambda: 0.5 * variable)

    def loss(y: Any, y_pred: Any) -> Any:
        return variable * of_keras * tf.cast(optimizer.iterations + 1, tf.float32) * mean_square(y, y_pred)

    def error(y: Any, y_pred: Any) -> Any:
        return variable * tf.reduce_mean(tf.abs(y - y_pred), -1)

    callbacks = [
        each_epoch(variable, lambda epoch: 0.3 / (1 + epoch)),
        each_epoch(of_keras, lambda epoch: 0.5 + 0.25 * epoch),
    ]
    return optimizer, {"loss": loss, "metrics": [error]}, callbacks


@pytest.mark.parametrize(("rate", "where"), [("callable", ("one_device", 1)), ("schedule", ("mirrored", 2))], ids=str)
def test_they_follow_the_variables(rate: str, where: Any, strategy_of: Any) -> None:
    found = []
    for strategy in (None, strategy_of(*where)):
        keras.utils.set_random_seed(0)
        with tf.distribute.get_strategy().scope() if strategy is None else strategy.scope():
            model = sequential((2,), L.Dense(1))
            optimizer, parts, callbacks = setting(rate)
        if strategy is None:
            model.compile(optimizer, **parts)
            history = model.fit(data(), epochs=3, shuffle=False, verbose=0, callbacks=callbacks).history
        else:
            loop = mk.train.Loop(strategy, mk.train.Step(model, optimizer, **parts))
            history = loop.fit(data(), epochs=3, verbose=0, callbacks=callbacks).history
        found.append([*model.get_weights(), np.array(history["loss"]), np.array(history["error"])])
    assert largest_difference(*found) < 1e-6  # measured: 2.0e-7, of rates


def line(strategy: Any, rate: float = 0.1, **options: Any) -> mk.train.Loop:
    """A linear model."""
    with strategy.scope():
        model, optimizer = sequential((2,), L.Dense(1)), keras.optimizers.SGD(rate)
    return mk.train.Loop(strategy, mk.train.Step(model, optimizer, **{"loss": "mse", **options}), steps_per_call=1)


@pytest.mark.slow
def test_a_clipping_norm_may_be_a_variable(strategy_of: Any) -> None:
    strategy = strategy_of("mirrored", 2)
    with strategy.scope():
        bound = tf.Variable(0.5)
    loop = line(strategy, 1.0, clip_norm=bound)
    sizes = []
    for norm in (0.5, 0.25):
        bound.assign(norm)
        before = np.concatenate([weight.ravel() for weight in loop.step.model.get_weights()])
        loop.fit(data().take(1), verbose=0)
        after = np.concatenate([weight.ravel() for weight in loop.step.model.get_weights()])
        sizes.append(np.linalg.norm(after - before))
    np.testing.assert_allclose(sizes, [0.5, 0.25], rtol=1e-4)


def _from_loss(strategy: Any, part: Callable[[], Any]) -> mk.train.Loop:
    with strategy.scope():
        model, other, optimizer = sequential((2,), L.Dense(1)), part(), keras.optimizers.SGD(0.1)
    factor = other if callable(other) else lambda x: other

    def loss_fn(batch: Any) -> Any:
        return ((model(batch[0]) - batch[1]) * factor(batch[0]))[:, 0] ** 2

    return mk.train.Loop(strategy, mk.train.Step.from_loss(model, optimizer, loss_fn))


@pytest.mark.parametrize(
    "part", [lambda: sequential((2,), L.Dense(1)), lambda: tf.Variable(1.0)], ids=["model", "variable"]
)
def test_what_loss_fn_might_be_meant_to_train_is_refused(part: Any, strategy_of: Any) -> None:
    with pytest.raises(StepError, match=r"not among its own: .*trainable=False"):
        _from_loss(strategy_of("mirrored", 2), part).fit(data(), verbose=0)


def test_loss_fn_may_read_what_is_not_trained(strategy_of: Any) -> None:
    loop = _from_loss(strategy_of("mirrored", 2), lambda: tf.Variable(0.0, trainable=False))
    assert loop.fit(data(), verbose=0).history["loss"] == [0.0]


def test_a_loss_that_writes_a_variable_is_refused(strategy_of: Any) -> None:
    strategy = strategy_of("mirrored", 2)
    with strategy.scope():
        calls, factor = tf.Variable(0.0, name="calls"), tf.Variable(1.0, name="factor")

    def loss(y: Any, y_pred: Any) -> Any:
        calls.assign_add(1.0)
        return factor * mean_square(y, y_pred)

    with pytest.raises(StepError, match=r"not among its own: a variable that it writes"):
        line(strategy, loss=loss, unchecked=("loss",)).fit(data(), verbose=0)


def test_a_program_of_xlas_for_several_replicas_reads_none(strategy_of: Any) -> None:
    strategy = strategy_of("mirrored", 2)
    with strategy.scope():
        factor = tf.Variable(1.0, name="factor")
    loop = line(strategy, loss=lambda y, y_pred: factor * mean_square(y, y_pred), jit_compile=True)
    with pytest.raises(StepError, match=r"jit_compile=True.*factor"):
        loop.fit(data(), verbose=0)


def test_numbers_that_are_read_once_are_no_variables(strategy_of: Any) -> None:
    strategy = strategy_of("mirrored", 2)
    with strategy.scope():
        number = keras.Variable(2.0, name="number")
    loop = line(strategy)
    with pytest.raises(StepError, match=r"class_weight .*the variable 'number"):
        loop.fit(data(), verbose=0, class_weight={0: number})
    for wrong in (float("nan"), "a"):
        with pytest.raises(StepError, match="class_weight takes finite"):
            loop.fit(data(), verbose=0, class_weight={0: wrong})
