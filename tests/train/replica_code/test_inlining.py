"""Layers whose call is a tf.function, or assigns a variable and reads it; updates that read what they write."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from training_helpers import fit_compiled, plain_dataset

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


def _compiled(
    layer: Any, optimizer: Any = lambda: keras.optimizers.SGD(0.1), loss_of: Any = lambda model: "mse", **options: Any
) -> Any:
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), L.Dense(5, "tanh"), layer(), L.Dense(1, **options)])
    model.compile(optimizer(), loss_of(model))
    return model


def _as_keras(strategy: tf.distribute.Strategy, layer: Any, data: Any, **options: Any) -> None:
    """Weights and history are those of Keras's `fit` without a strategy."""
    fit_compiled(strategy, lambda: _compiled(layer, **options), data, apart=1e-6)


def _data(batch: int = 12) -> tf.data.Dataset:
    """Batches whose size is known beforehand."""
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(batch, drop_remainder=True)


@pytest.mark.parametrize(
    ("where", "batch"), [pytest.param(("one_device", 1), 4, marks=pytest.mark.slow), (("mirrored", 3), 12)]
)
def test_a_layer_whose_call_is_a_tf_function_is_trained(where: Any, batch: int, strategy_of: Any) -> None:
    """A replica has four rows, as the sample that was checked before: the trace for these is not used again."""
    _as_keras(strategy_of(*where), Traced, _data(batch))


class MeanOfTwo(keras.Sequential):  # type: ignore[misc]
    """Updates twice, so that its step is run with variables."""

    def train_step(self, data: Any) -> Any:
        super().train_step(data)
        return super().train_step(data)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [keras.Sequential, MeanOfTwo], ids=["one update", "two updates"])
def test_another_thread_calls_a_tf_function_while_a_model_is_traced(kind: Any, loop_over: Any) -> None:
    """It is a graph there, and not Python that runs at once."""
    eagerly: list[bool] = []

    @tf.function
    def of_another(x: tf.Tensor) -> tf.Tensor:
        eagerly.append(tf.executing_eagerly())
        return 2 * x

    class Meanwhile(L.Layer):
        def call(self, x: tf.Tensor) -> tf.Tensor:
            with ThreadPoolExecutor(1) as other:
                other.submit(lambda: of_another(tf.constant(1.0))).result()
            return x

    def made() -> Any:
        model = kind([keras.Input((4,)), Meanwhile(), L.Dense(1)])
        model.compile("sgd", "mse")
        return model

    loop = loop_over(made)
    loop.fit(_data(), verbose=0)
    loop.predict(_data())
    assert eagerly == [False]


def test_it_predicts_with_the_present_weights(loop_over: Any) -> None:
    loop, data = loop_over(lambda: _compiled(Traced), ("one_device", 1)), _data()
    before = loop.predict(data)
    loop.fit(data, verbose=0)
    after = loop.predict(data)
    np.testing.assert_allclose(after, keras.ops.convert_to_numpy(loop.step.model(X)), atol=1e-6)
    assert np.abs(after - before).max() > 1e-3


def test_no_gradient_flows_through_an_assigned_variable(strategy_of: Any) -> None:
    _as_keras(strategy_of("one_device", 1), Centered, _data())


class Queue(L.Layer):
    """Keeps the last four rows; of a batch of unknown size the shape of the new value is not known."""

    def build(self, shape: Any) -> None:
        self.rows = self.add_weight(shape=(4, shape[-1]), initializer="zeros", trainable=False, name="rows")

    def call(self, x: tf.Tensor, training: bool = False) -> tf.Tensor:
        y = x + tf.reduce_mean(tf.convert_to_tensor(self.rows), 0)
        if training:
            self.rows.assign(keras.ops.concatenate([tf.stop_gradient(x), self.rows], 0)[:4])
        return y


@pytest.mark.slow
def test_a_state_whose_new_shape_is_not_known_is_one_too(strategy_of: Any) -> None:
    _as_keras(strategy_of("one_device", 1), Queue, plain_dataset(X, Y, batch=12))


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


@pytest.mark.parametrize("name", ["apply", "apply_gradients", "update_step"])
def test_a_method_that_was_replaced_on_the_optimizer_itself_is_refused(name: str) -> None:
    optimizer = keras.optimizers.SGD(0.1)
    setattr(optimizer, name, lambda *args: None)
    with pytest.raises(StepError, match=f"{name} was replaced"):
        mk.train.Step(_compiled(L.Identity), optimizer, loss="mse")


@pytest.mark.slow
def test_a_loss_may_read_the_weights_of_the_model(strategy_of: Any) -> None:
    def penalized(model: Any) -> Any:
        def loss(y: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
            penalty = sum(keras.ops.sum(weight**2) for weight in model.trainable_variables)
            return keras.ops.mean((y - y_pred) ** 2, -1) + 0.01 * penalty

        return loss

    _as_keras(strategy_of("mirrored", 2), L.Identity, _data(), loss_of=penalized)


def test_a_model_that_runs_eagerly_is_refused() -> None:
    model = keras.Sequential([keras.Input((4,)), L.Dense(1)])
    model.compile("sgd", "mse", run_eagerly=True)
    with pytest.raises(StepError, match="run_eagerly=True"):
        mk.train.Step.from_compiled(model)
