"""`Step.from_compiled`: a second compile; logits taken for probabilities; data in float64; what is inside."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from training_helpers import Twice, plain_dataset, sequential

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.errors import StepError

L = keras.layers


@pytest.mark.parametrize(
    ("when", "policy"),
    [
        pytest.param("before fit", "float32", marks=pytest.mark.slow),
        pytest.param("before evaluate", "float32", marks=pytest.mark.slow),
        ("between fits", "mixed_float16"),  # `compile` wraps the optimizer
    ],
)
def test_a_second_compile_is_refused(when: str, policy: str, strategy_of: Any, request: Any) -> None:
    request.addfinalizer(functools.partial(keras.config.set_dtype_policy, keras.config.dtype_policy()))
    keras.config.set_dtype_policy(policy)
    strategy = strategy_of("mirrored", 2)
    with strategy.scope():
        model = sequential((4,), L.Dense(2), L.Dense(1, dtype="float32"))
        model.compile("sgd", "mse")
        loop = mk.train.Loop(strategy, mk.train.Step.from_compiled(model))
        data = plain_dataset(np.ones([8, 4], np.float32), np.ones([8, 1], np.float32), batch=4)
        if when != "before fit":
            loop.fit(data, verbose=0)
        model.compile("sgd", "mae")
        with pytest.raises(StepError, match="compile was called after"):
            loop.evaluate(data) if when == "before evaluate" else loop.fit(data, epochs=3, verbose=0)
        again = mk.train.Loop(strategy, mk.train.Step.from_compiled(model))
    assert again.fit(data, verbose=0).history["loss"]


# --- A warning where the model gives logits and the loss takes probabilities, or the other way round


@pytest.mark.parametrize(
    ("last", "loss", "cure"),
    [
        (None, "sparse_categorical_crossentropy", r"SparseCategoricalCrossentropy\(from_logits=True\)"),
        (None, keras.losses.BinaryCrossentropy(), r"BinaryCrossentropy\(from_logits=True\)"),
        ("softmax", keras.losses.SparseCategoricalCrossentropy(from_logits=True), "from_logits=False"),
        ("sigmoid", keras.losses.BinaryCrossentropy(from_logits=True), "from_logits=False"),
    ],
)
def test_a_loss_that_takes_logits_for_probabilities_is_named(last: Any, loss: Any, cure: str) -> None:
    model = keras.Sequential([keras.Input((4,)), L.Dense(3, activation=last)])
    with pytest.warns(UserWarning, match=cure):
        mk.train.Step(model, keras.optimizers.SGD(), loss=loss)


@pytest.mark.parametrize(
    ("layers", "loss"),
    [
        ([L.Dense(3)], keras.losses.SparseCategoricalCrossentropy(from_logits=True)),
        ([L.Dense(3, activation="softmax")], "sparse_categorical_crossentropy"),
        ([L.Dense(3), L.Softmax()], "sparse_categorical_crossentropy"),
        ([L.Dense(3), L.Activation("softmax")], "categorical_crossentropy"),
        ([L.Dense(1)], "mse"),
        ([L.Dense(1, activation="sigmoid")], "binary_crossentropy"),
    ],
)
def test_a_loss_that_fits_brings_no_warning(layers: list[Any], loss: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mk.train.Step(keras.Sequential([keras.Input((4,)), *layers]), keras.optimizers.SGD(), loss=loss)


# --- data in float64 trains as in Keras's `fit`, which casts it: `x / 255.0` is in most scripts


RNG = np.random.default_rng(0)
X, Y = RNG.integers(0, 256, (64, 8)) / 255.0, RNG.normal(size=(64, 4))
WEIGHT = np.linspace(0, 2, 64)


class Plain(keras.Model):
    """Multiplies as it is given, by TensorFlow alone."""

    def __init__(self) -> None:
        super().__init__()
        self.w = self.add_weight(shape=(8, 4), initializer="ones")

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return tf.matmul(x, self.w.value)


def squares(y: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean((y - y_pred) ** 2, -1)


def batches(*arrays: np.ndarray) -> Any:
    x, y, *weight = arrays
    return mk.data.batches(mk.data.arrays(x, y, sample_weight=weight[0] if weight else None), global_batch_size=16)


@pytest.mark.slow
def test_it_trains_as_float32_does(make_loop: Any) -> None:
    wide, other = (make_loop(("mirrored", 2), Plain, loss=squares, metrics=["mae"]) for _ in range(2))
    arrays = X, Y, WEIGHT
    for what in ("fit", "evaluate", "predict"):
        given = {"verbose": 0} if what == "fit" else {}
        runs = ((wide, arrays), (other, (array.astype(np.float32) for array in arrays)))
        found, wanted = (getattr(one, what)(batches(*a), **given) for one, a in runs)
        if what == "predict":
            np.testing.assert_array_equal(found, wanted)
        else:
            assert getattr(found, "history", found) == getattr(wanted, "history", wanted)


@pytest.mark.slow
def test_a_model_that_computes_in_float64_gets_it(make_loop: Any) -> None:
    """float32 would round these examples to multiples of 8."""

    def net() -> Any:
        layers = [L.Rescaling(1.0, offset=-1e8, dtype="float64"), L.Dense(4, dtype="float64")]
        return keras.Sequential([keras.Input((8,), dtype="float64"), *layers])

    loop, data = make_loop(("mirrored", 2), net), batches(X + 1e8, Y)
    predicted = X @ loop.step.model.get_weights()[0]
    np.testing.assert_allclose(loop.predict(data), predicted, atol=1e-6)
    assert loop.evaluate(data)["loss"] == pytest.approx(((predicted - Y) ** 2).mean(), rel=1e-6)
    assert loop.fit(data, verbose=0).history["loss"][0] < 10


# --- a model in a model


@pytest.mark.parametrize("has_run", [True, False])
def test_the_metrics_of_a_compiled_model_in_the_model_are_not_those_of_the_step(has_run: bool, make_loop: Any) -> None:
    x, y = np.random.default_rng(0).normal(size=(2, 24, 4)).astype("float32")

    def net() -> Any:
        base = sequential((4,), L.Dense(4))
        base.compile("sgd", "mse", metrics=["mae"])
        if has_run:
            base.evaluate(x, y, verbose=0)
        return sequential((4,), base, L.Dense(1))

    loop = make_loop(("mirrored", 2), net, metrics=["mae"])
    logs = loop.evaluate(plain_dataset(x, y[:, :1], batch=10))
    errors = loop.step.model.predict(x, verbose=0) - y[:, :1]
    assert logs == {
        "loss": pytest.approx(np.mean(errors**2), rel=1e-5),
        "mae": pytest.approx(np.mean(np.abs(errors)), rel=1e-5),
    }


class Measures(keras.Model):
    """A metric of its own, and one that has the name of the step's."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = L.Dense(3)
        self.activity, self.loss_tracker = keras.metrics.Mean("activity"), keras.metrics.Mean("loss")

    def call(self, x: Any) -> Any:
        y = self.dense(x)
        self.activity.update_state(keras.ops.abs(y))
        return y


def test_a_model_in_the_model_may_have_a_metric_of_its_own(make_loop: Any) -> None:
    x = np.random.default_rng(0).normal(size=(24, 4)).astype("float32")
    loop = make_loop(("mirrored", 2), lambda: sequential((4,), Measures(), L.Dense(1)))
    logs = loop.evaluate(plain_dataset(x, x[:, :1], batch=12))
    inner, model = loop.step.model.layers[0], loop.step.model
    assert logs == {
        "loss": pytest.approx(np.mean((model.predict(x, verbose=0) - x[:, :1]) ** 2), rel=1e-5),
        "activity": pytest.approx(np.mean(np.abs(inner.dense(x))), rel=1e-5),
    }


# --- an optimizer with an `apply` of its own


class Scaled(keras.optimizers.SGD):  # type: ignore[name-defined, misc]
    """Divides each gradient by the root of its norm."""

    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        scaled = [grad / tf.sqrt(tf.norm(grad)) for grad in grads]
        return super().apply(scaled, trainable_variables)


@pytest.mark.parametrize("kind", [keras.Model, Twice])
@pytest.mark.parametrize("where", [("one_device", 1), ("mirrored", 2)], ids=str)
def test_an_apply_of_an_optimizer_s_own_is_called_once_for_the_whole_batch(
    where: Any, kind: Any, loop_over: Any
) -> None:
    def make() -> Any:
        net = sequential((4,), L.Dense(3, "tanh"), L.Dense(1))
        model = kind(net.inputs, net.outputs)
        model.compile(Scaled(0.1), "mse")
        return model

    loop = loop_over(make, where)
    data = plain_dataset(*(np.random.default_rng(0).normal(size=(24, n)).astype("float32") for n in (4, 1)), batch=12)
    loop.fit(data, verbose=0)
    keras.utils.set_random_seed(0)
    model = make()
    model.fit(data, verbose=0)
    for one, other in zip(loop.step.model.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
