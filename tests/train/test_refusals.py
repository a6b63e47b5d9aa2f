"""What Step and Loop refuse, before anything trains: each error is a StepError that says what to do."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from training_helpers import KINDS, plain_dataset

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.errors import MirrorkitError, StepError

L = keras.layers
pytestmark = pytest.mark.filterwarnings("ignore:A global batch of")


def _net() -> Any:
    return keras.Sequential([keras.Input((4,)), L.Dense(3), L.Dense(1)])


@pytest.fixture(scope="module")
def loop(strategy_of: Any) -> mk.train.Loop:
    """A sound loop, to be given bad data; nothing here should get as far as training."""
    strategy = strategy_of("mirrored", 2)
    with strategy.scope():
        model, optimizer = _net(), keras.optimizers.Adam(0.1)
    return mk.train.Loop(strategy, mk.train.Step(model, optimizer, loss="mse", metrics=["mae"]), steps_per_call=2)


# --- model and optimizer


@pytest.mark.parametrize("where", KINDS, ids=str)
def test_variables_made_outside_of_the_scope(where: Any, strategy_of: Any) -> None:
    """In none, or in that of another strategy; what is refused is as it was."""
    strategy, other, nowhere = strategy_of(*where), strategy_of("mirrored", 4), contextlib.nullcontext()
    for of_model, of_optimizer in ((nowhere, nowhere), (nowhere, strategy.scope()), (strategy.scope(), nowhere)):
        with of_model:
            model = _net()
        with of_optimizer:
            optimizer = keras.optimizers.Adam(0.1)
        with pytest.raises(StepError, match=r"with strategy\.scope\(\)"):
            mk.train.Loop(strategy, mk.train.Step(model, optimizer, loss="mse"))
        assert not optimizer.built
        assert not model.compiled
    with other.scope():
        model, optimizer = _net(), keras.optimizers.SGD(0.1)
    with pytest.raises(StepError, match=r"scope"):
        mk.train.Loop(strategy, mk.train.Step(model, optimizer, loss="mse"))


def test_a_step_of_another_strategy(loop: Any, strategy_of: Any) -> None:
    with pytest.raises(StepError, match="built for another strategy"):
        mk.train.Loop(strategy_of("mirrored", 4), loop.step)


def test_what_is_no_model(strategy_of: Any) -> None:
    step = mk.train.Step("mlp", keras.optimizers.SGD(0.1), loss="mse")
    with pytest.raises(StepError, match=r"keras\.Model.*found 'mlp'.*mk\.models\.create"):
        mk.train.Loop(strategy_of("one_device", 1), step)


def test_a_model_with_nothing_to_train(strategy_of: Any) -> None:
    strategy = strategy_of("one_device", 1)
    with strategy.scope():
        model, optimizer = _net(), keras.optimizers.SGD(0.1)
    model.trainable = False
    with pytest.raises(StepError, match="no trainable variables"):
        mk.train.Loop(strategy, mk.train.Step(model, optimizer, loss="mse"))


@pytest.mark.parametrize("optimizer", ["adam", None, keras.optimizers.Adam, {"class_name": "Adam"}], ids=str)
def test_what_is_no_optimizer(optimizer: Any) -> None:
    with pytest.raises(StepError, match=r"keras\.optimizers\.Optimizer, found"):
        mk.train.Step(_net(), optimizer, loss="mse")


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (
            lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()),
            r"LossScaleOptimizer.*inner_optimizer.*loss_scale=\"dynamic\"",
        ),
        (
            lambda: keras.optimizers.SGD(gradient_accumulation_steps=2),
            r"gradient_accumulation_steps=2.*Step\(\.\.\., accumulate=2\)",
        ),
        (lambda: keras.optimizers.Adam(use_ema=True, ema_overwrite_frequency=3), r"frequency=3.*ema=0\.99\).*averaged"),
        (
            lambda: keras.optimizers.SGD(loss_scale_factor=8.0),
            r"loss_scale_factor=8\.0.*Step\(\.\.\., loss_scale=8\.0\)",
        ),
    ],
)
def test_switches_of_an_optimizer_that_cannot_be_replicated(make: Callable[[], Any], named: str) -> None:
    with pytest.raises(StepError, match=named):
        mk.train.Step(_net(), make(), loss="mse")


def test_averages_that_keras_would_put_into_the_weights_bring_a_warning() -> None:
    with pytest.warns(UserWarning, match=r"use_ema=True.*ema=0\.9\).*finalize_variable_values"):
        mk.train.Step(_net(), keras.optimizers.SGD(use_ema=True, ema_momentum=0.9), loss="mse")


@pytest.mark.skipif(not hasattr(keras.optimizers, "MultiOptimizer"), reason="this Keras has no MultiOptimizer")
def test_several_optimizers_in_one() -> None:
    several = keras.optimizers.MultiOptimizer(keras.optimizers.OptimizerMap(keras.optimizers.SGD()))
    with pytest.raises(StepError, match="MultiOptimizer"):
        mk.train.Step(_net(), several, loss="mse")


def test_an_optimizer_that_belongs_to_another_model(loop: Any) -> None:
    with loop.strategy.scope():
        model = _net()
    with pytest.raises(StepError, match=r"built for other variables.*new optimizer"):
        mk.train.Loop(loop.strategy, mk.train.Step(model, loop.step.optimizer, loss="mse"))


def test_a_layer_that_assigns_its_own_kernel(strategy_of: Any) -> None:
    """Within another layer; a layer of the user's own: test_silent_differences.py."""
    strategy = strategy_of("one_device", 1)
    with strategy.scope():
        layer = L.SpectralNormalization(L.Dense(2), name="lipschitz")
        layers = [L.Reshape((2, 2)), L.TimeDistributed(layer), L.Flatten()]
        model = keras.Sequential([keras.Input((4,)), *layers, L.Dense(1)])
        optimizer = keras.optimizers.SGD(0.1)
    x, y = np.ones((8, 4), "float32"), np.ones((8, 1), "float32")
    loop = mk.train.Loop(strategy, mk.train.Step(model, optimizer, loss="mse"))
    with pytest.raises(StepError, match=r"assigns its own trainable weight '.*lipschitz.*kernel'"):
        loop.fit(plain_dataset(x, y, batch=4), verbose=0)


def test_a_layer_that_draws_from_nowhere(make_loop: Any, numbers: Any) -> None:
    class Noise(L.Layer):
        def call(self, x: Any) -> Any:
            return x + keras.random.normal((1,))

    loop = make_loop(("mirrored", 2), lambda: keras.Sequential([keras.Input((4,)), Noise(), L.Dense(1)]))
    with pytest.raises(StepError, match="SeedGenerator"):
        loop.fit(plain_dataset(*numbers, batch=30), verbose=0)


@pytest.mark.parametrize("static", [True, False])
def test_a_layer_that_draws_from_tensorflow(static: bool, make_loop: Any, numbers: Any) -> None:
    """`tf.random` would give every replica the same numbers, and warm_up could not put its counter back."""

    class Noise(L.Layer):
        def call(self, x: Any) -> Any:
            return x + tf.random.normal(tf.shape(x))

    loop = make_loop(("mirrored", 2), lambda: keras.Sequential([keras.Input((4,)), Noise(), L.Dense(1)]))
    data = tf.data.Dataset.from_tensor_slices(numbers).batch(30, drop_remainder=static)
    with pytest.raises(StepError, match="SeedGenerator"):
        loop.fit(data, verbose=0)


def test_layers_frozen_behind_the_steps_back(make_loop: Any, numbers: Any) -> None:
    loop = make_loop(("mirrored", 2), _net)
    loop.step.model.layers[0].trainable = False
    with pytest.raises(StepError, match=r"trainable.*new Step"):
        loop.fit(plain_dataset(*numbers, batch=30), verbose=0)


def test_fine_tuning_takes_a_new_step(make_loop: Any, numbers: Any) -> None:
    loop = make_loop(("mirrored", 2), _net)
    data = plain_dataset(*numbers, batch=30)
    loop.fit(data, verbose=0)
    model = loop.step.model
    model.layers[0].trainable = False
    before = model.get_weights()
    with loop.strategy.scope():
        optimizer = keras.optimizers.SGD(0.01)
    tuned = mk.train.Loop(loop.strategy, mk.train.Step(model, optimizer, loss="mae"))
    scheduler = keras.callbacks.LearningRateScheduler(lambda epoch: 0.02)
    history = tuned.fit(data, callbacks=[scheduler], verbose=0).history
    np.testing.assert_allclose(history["learning_rate"], [0.02])  # callbacks reach the new optimizer
    assert float(optimizer.learning_rate.numpy()) == pytest.approx(0.02)
    changed = [not np.array_equal(old, new) for old, new in zip(before, model.get_weights(), strict=True)]
    assert changed == [False, False, True, True]


# --- loss


def _fails(make_loop: Any, data: Any, match: str, net: Callable[[], Any] = _net, **options: Any) -> None:
    loop = make_loop(("mirrored", 2), net, **options)
    with pytest.raises(StepError, match=match) as error:
        loop.fit(data, verbose=0)
    assert isinstance(error.value, MirrorkitError)
    assert "in user code" not in str(error.value), "AutoGraph has wrapped the message"


@pytest.mark.parametrize(
    ("loss", "match"),
    [
        ("mean_sqared_error", r"no loss 'mean_sqared_error'"),
        (7, "must be a Keras name, a function or a keras.losses.Loss; found 7"),
        (None, "No output of the model has a loss"),
        (keras.losses.Huber, r"class Huber itself.*Huber\(\)"),
        (keras.losses.MeanSquaredError(reduction="sum"), r"reduction='sum'.*sum_over_batch_size"),
        (lambda y, y_pred: tf.reduce_mean((y - y_pred) ** 2), r"one number for the whole batch.*shape \[batch\]"),
        (lambda y, y_pred: tf.stop_gradient(y_pred[:, 0]), "does not depend on any trainable weight"),
        (["mse", "mae"], "1 outputs.*2 losses"),
    ],
    ids=["unknown", "number", "none", "class", "sum", "scalar", "cut off", "too many"],
)
def test_losses_that_cannot_be(loss: Any, match: str, make_loop: Any, numbers: Any) -> None:
    _fails(make_loop, plain_dataset(*numbers, batch=30), match, loss=loss)


def test_an_unknown_metric(make_loop: Any, numbers: Any) -> None:
    _fails(make_loop, plain_dataset(*numbers, batch=30), "no metric 'acuracy'", metrics=["acuracy"])


@pytest.mark.parametrize("metrics", [None, ["accuracy"]])
def test_missing_targets(metrics: Any, make_loop: Any, numbers: Any) -> None:
    _fails(make_loop, plain_dataset(numbers[0], batch=30), r"no target.*\(x, y\)", metrics=metrics)


def _two_outputs() -> Any:
    inputs = keras.Input((4,))
    return keras.Model(inputs, {"a": L.Dense(1, name="a")(inputs), "b": L.Dense(1, name="b")(inputs)})


@pytest.mark.parametrize(
    ("targets", "options", "match"),
    [
        (("a",), {"loss": "mse"}, "no target for the output 'b'"),
        (("a", "b"), {"loss": ["mse"]}, r"2 outputs \['a', 'b'\], but 1 losses"),
        (("a", "b"), {"loss": {"a": "mse", "c": "mse"}}, r"name \['c'\].*\['a', 'b'\]"),
        (("a", "b"), {"loss": {"a": "mse"}, "metrics": {"z": ["mae"]}}, r"name \['z'\]"),
        (("a",), {"loss": {"a": "mse", "b": "mse"}}, "no target for the output 'b'"),
        (("a",), {"loss": {"a": "mse"}, "metrics": {"b": ["mae"]}}, "metrics but no target.*b"),
        (("a", "q"), {"loss": {"a": "mse"}}, r"targets name \['q'\]"),
    ],
)
def test_outputs_that_do_not_fit(targets: Any, options: Any, match: str, make_loop: Any, numbers: Any) -> None:
    data = tf.data.Dataset.from_tensor_slices((numbers[0], dict.fromkeys(targets, numbers[1]))).batch(30)
    _fails(make_loop, data, match, _two_outputs, **options)


def test_compute_before_build() -> None:
    step = mk.train.Step(_net(), keras.optimizers.SGD(), loss="mse")
    with pytest.raises(StepError, match=r"step\.build\(strategy\)"):
        step.compute((np.zeros((2, 4)), np.zeros((2, 1))))


# --- from a compiled model


def test_a_model_that_is_not_compiled() -> None:
    with pytest.raises(
        StepError, match=r"not compiled.*model\.compile.*mk\.train\.export holds neither.*load it in the"
    ):
        mk.train.Step.from_compiled(_net())


def test_a_model_compiled_without_a_loss() -> None:
    model = _net()
    model.compile("sgd")
    with pytest.raises(StepError, match=r"without a loss"):
        mk.train.Step.from_compiled(model)


class Lookahead(keras.optimizers.Optimizer):  # type: ignore[name-defined, misc]
    """Hands the gradients to another optimizer, as wrappers do."""

    def __init__(self, inner: Any, *, hides_it: bool = False) -> None:
        super().__init__(learning_rate=0.1)
        self.get = lambda: inner
        if not hides_it:
            self.inner = inner

    def build(self, variables: Any) -> None:
        super().build(variables)
        self.get().build(variables)

    def apply(self, gradients: Any, variables: Any = None) -> None:
        self.get().apply(gradients, variables)


class Assertive(keras.optimizers.SGD):  # type: ignore[name-defined, misc]
    """Raises an error without a word."""

    def apply(self, gradients: Any, variables: Any = None) -> None:
        raise AssertionError


def test_an_optimizer_that_wraps_another() -> None:
    with pytest.raises(StepError, match=r"Lookahead holds another optimizer, Adam, in its attribute 'inner'.*ema"):
        mk.train.Step(_net(), Lookahead(keras.optimizers.Adam()), loss="mse")


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Lookahead(keras.optimizers.Adam(), hides_it=True), "Lookahead could not be computed as a function"),
        (lambda: Assertive(), "Assertive could not be computed .* needs: AssertionError. An optimizer of your own def"),
    ],
)
def test_an_optimizer_that_is_no_function(make: Any, named: str, strategy_of: Any, numbers: Any) -> None:
    strategy = strategy_of("one_device", 1)
    with strategy.scope():
        step = mk.train.Step(_net(), make(), loss="mse")
    with pytest.raises(StepError, match=named):
        mk.train.Loop(strategy, step).fit(plain_dataset(*numbers, batch=20), verbose=0)


class LeftOver(keras.Model):  # type: ignore[name-defined, misc]
    """A ported model whose trackers are gone, but not the property that names them."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = L.Dense(1)

    @property
    def metrics(self) -> Any:
        return [self.loss_tracker]

    def call(self, x: Any) -> Any:
        return self.dense(x)


@pytest.mark.parametrize("by_loss", [False, True])
def test_a_property_metrics_that_names_what_is_gone(by_loss: bool, strategy_of: Any, numbers: Any) -> None:
    strategy = strategy_of("one_device", 1)
    with strategy.scope():
        model, optimizer = LeftOver(), keras.optimizers.SGD(0.1)

    def loss(batch: Any) -> Any:
        return tf.reduce_mean((model(batch[0]) - batch[1]) ** 2, -1)

    step = mk.train.Step.from_loss(model, optimizer, loss) if by_loss else mk.train.Step(model, optimizer, loss="mse")
    named = r"property `metrics` of LeftOver raised AttributeError.*loss_tracker.*Remove it"
    with pytest.raises(StepError, match=named):
        mk.train.Loop(strategy, step).fit(plain_dataset(*numbers, batch=20), verbose=0)
