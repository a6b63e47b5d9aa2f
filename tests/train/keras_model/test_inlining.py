"""Layers whose call is a tf.function, or assigns a variable and reads it; updates that read what they write."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from training_helpers import largest_difference

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.errors import StepError

L = keras.layers
RNG = np.random.default_rng(0)
X = RNG.normal(size=(36, 4)).astype("float32")
Y = np.tanh(X[:, :1] * X[:, 1:2]).astype("float32")


class Traced(L.Layer):
    """A dense layer, as many tutorials speed one up."""

    def build(self, shape: Any) -> None:
        self.kernel = self.add_weight(shape=(shape[-1], 5), name="kernel")

    @tf.function
    def call(self, x: tf.Tensor) -> tf.Tensor:
        return tf.tanh(x @ self.kernel)


class Centered(L.Layer):
    """Subtracts a moving mean that this batch has moved."""

    def build(self, shape: Any) -> None:
        self.mean = self.add_weight(shape=(shape[-1],), initializer="zeros", trainable=False, name="mean")

    def call(self, x: tf.Tensor, training: bool = False) -> tf.Tensor:
        if training:
            self.mean.assign(0.5 * self.mean + 0.5 * keras.ops.mean(x, 0))
        return x - self.mean


def _compiled(layer: Any, optimizer: Any = lambda: keras.optimizers.SGD(0.1), **options: Any) -> Any:
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), L.Dense(5, "tanh"), layer(), L.Dense(1, **options)])
    model.compile(optimizer(), "mse")
    return model


def _apart(strategy: tf.distribute.Strategy, layer: Any, batch: int, *, unknown: bool = False) -> float:
    """How far weights and history are from those of Keras's `fit` without a strategy."""
    few = {"epochs": 2, "verbose": 0}
    model = _compiled(layer)
    of_keras = model.fit(X, Y, batch_size=batch, shuffle=False, validation_data=(X[:12], Y[:12]), **few).history
    expected = [*model.get_weights(), of_keras["loss"], of_keras["val_loss"]]
    with strategy.scope():
        model = _compiled(layer)
    data = _data(batch)
    if unknown:
        data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(batch)
    loop = mk.train.Loop(strategy, mk.train.Step.from_compiled(model))
    history = loop.fit(data, validation_data=_data(12, rows=12), **few).history
    return largest_difference([*model.get_weights(), history["loss"], history["val_loss"]], expected)


def _data(batch: int = 12, rows: int = 36) -> mk.data.Batches:
    return mk.data.batches(mk.data.arrays(X[:rows], Y[:rows]), global_batch_size=batch)


@pytest.mark.parametrize(("where", "batch"), [(("one_device", 1), 4), (("mirrored", 3), 12)])
def test_a_layer_whose_call_is_a_tf_function_is_trained(where: Any, batch: int, strategy_of: Any) -> None:
    """A replica has four rows, as the sample that was checked before: the trace for these is not used again."""
    assert _apart(strategy_of(*where), Traced, batch) < 1e-6


def test_it_predicts_with_the_present_weights(strategy_of: Any) -> None:
    strategy = strategy_of("one_device", 1)
    with strategy.scope():
        model = _compiled(Traced)
    loop = mk.train.Loop(strategy, mk.train.Step.from_compiled(model))
    data = _data()
    before = loop.predict(data)
    loop.fit(data, verbose=0)
    after = loop.predict(data)
    np.testing.assert_allclose(after, keras.ops.convert_to_numpy(model(X)), atol=1e-6)
    assert np.abs(after - before).max() > 1e-3


def test_no_gradient_flows_through_an_assigned_variable(strategy_of: Any) -> None:
    assert _apart(strategy_of("one_device", 1), Centered, 12) < 1e-6


class Queue(L.Layer):
    """Keeps the last four rows; of a batch of unknown size the shape of the new value is not known."""

    def build(self, shape: Any) -> None:
        self.rows = self.add_weight(shape=(4, shape[-1]), initializer="zeros", trainable=False, name="rows")

    def call(self, x: tf.Tensor, training: bool = False) -> tf.Tensor:
        y = x + tf.reduce_mean(tf.convert_to_tensor(self.rows), 0)
        if training:
            self.rows.assign(keras.ops.concatenate([tf.stop_gradient(x), self.rows], 0)[:4])
        return y


def test_a_state_whose_new_shape_is_not_known_is_one_too(strategy_of: Any) -> None:
    assert _apart(strategy_of("one_device", 1), Queue, 12, unknown=True) < 1e-6


class Tied(keras.constraints.Constraint):
    """Draws a weight towards another one."""

    def __init__(self, other: Any) -> None:
        self._other = other

    def __call__(self, weight: tf.Tensor) -> tf.Tensor:
        return 0.5 * (weight + tf.reduce_mean(tf.convert_to_tensor(self._other.kernel)))


@pytest.mark.parametrize(("what", "where"), [("rate", ("mirrored", 2)), ("constraint", ("one_device", 1))])
def test_an_update_that_reads_what_it_writes_is_refused(what: str, where: Any, strategy_of: Any) -> None:
    """The replicas' weights would drift apart: one of them reads the other's new value."""
    strategy = strategy_of(*where)
    with strategy.scope():
        other = L.Dense(5, "tanh")
        if what == "rate":
            made: list[Any] = []

            def rate() -> Any:
                return 0.01 * (1 + tf.cast(tf.convert_to_tensor(made[0].iterations), tf.float32)) if made else 0.01

            model = _compiled(lambda: other, lambda: made.append(keras.optimizers.Adam(rate)) or made[0])
        else:
            model = _compiled(lambda: other, kernel_constraint=Tied(other))
    loop = mk.train.Loop(strategy, mk.train.Step.from_compiled(model))
    with pytest.raises(StepError, match=r"reads the variable .*(iteration|kernel)"):
        loop.fit(_data(), verbose=0)


class OwnStep(keras.Sequential):  # type: ignore[name-defined, misc]
    """Makes its update on each replica, by that replica's own variables."""

    def train_step(self, data: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((data[1] - self(data[0], training=True)) ** 2)
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}


def test_an_own_train_step_may_read_what_its_update_writes(strategy_of: Any) -> None:
    found = []
    for strategy in (None, strategy_of("mirrored", 2)):
        keras.utils.set_random_seed(0)
        with tf.distribute.get_strategy().scope() if strategy is None else strategy.scope():
            other = L.Dense(5, "tanh")
            model = OwnStep([keras.Input((4,)), other, L.Dense(5, "tanh", kernel_constraint=Tied(other)), L.Dense(1)])
            model.compile(keras.optimizers.SGD(0.1))
        if strategy is None:
            model.fit(X, Y, batch_size=12, shuffle=False, verbose=0)
        else:
            data = _data()
            mk.train.Loop(strategy, mk.train.Step.from_compiled(model)).fit(data, verbose=0)
            for weight in model.weights:
                first, *others = [copy.numpy() for copy in strategy.experimental_local_results(weight.value)]
                assert all(np.array_equal(first, one) for one in others)
        found.append(model.get_weights())
    assert largest_difference(*found) < 1e-6


@pytest.mark.parametrize("name", ["apply", "apply_gradients", "update_step"])
def test_a_method_that_was_replaced_on_the_optimizer_itself_is_refused(name: str) -> None:
    optimizer = keras.optimizers.SGD(0.1)
    setattr(optimizer, name, lambda *args: None)
    with pytest.raises(StepError, match=f"{name} was replaced"):
        mk.train.Step(_compiled(L.Identity), optimizer, loss="mse")


def test_a_loss_may_read_the_weights_of_the_model(strategy_of: Any) -> None:
    """A small penalty, which the comparison of the first batch would let pass."""

    def trained(strategy: Any, *, by_keras: bool = False) -> list[np.ndarray]:
        keras.utils.set_random_seed(0)
        with strategy.scope():
            model = keras.Sequential([keras.Input((4,)), L.Dense(5, "tanh"), L.Dense(1)])
            optimizer = keras.optimizers.SGD(0.1)

        def loss(y: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
            penalty = sum(keras.ops.sum(layer.kernel**2) for layer in model.layers)
            return keras.ops.mean((y - y_pred) ** 2, -1) + 1e-4 * penalty

        model.compile(optimizer, loss)
        if by_keras:
            model.fit(X, Y, batch_size=12, epochs=10, shuffle=False, verbose=0)
        else:
            data = _data()
            mk.train.Loop(strategy, mk.train.Step.from_compiled(model)).fit(data, epochs=10, verbose=0)
        return list(model.get_weights())

    found = trained(strategy_of("mirrored", 2))
    expected = trained(tf.distribute.get_strategy(), by_keras=True)
    assert largest_difference(found, expected) < 2e-6


def test_a_model_that_runs_eagerly_is_refused() -> None:
    model = keras.Sequential([keras.Input((4,)), L.Dense(1)])
    model.compile("sgd", "mse", run_eagerly=True)
    with pytest.raises(StepError, match="run_eagerly=True"):
        mk.train.Step.from_compiled(model)
