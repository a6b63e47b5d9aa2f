"""What Step and Loop refuse, before anything trains: what is given, and words that the StepError says."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from step_helpers import with_policy
from training_helpers import KINDS, plain_dataset, sequential

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.errors import MirrorkitError, StepError
from mirrorkit.train.step.loss_scale import LossScale

L, o = keras.layers, keras.optimizers


def _net() -> Any:
    return sequential((4,), L.Dense(3), L.Dense(1))


def _step(**options: Any) -> mk.train.Step:
    return _with(o.SGD(0.1), **options)


def _with(optimizer: Any, **options: Any) -> mk.train.Step:
    return mk.train.Step(_net(), optimizer, **{"loss": "mse", **options})


# --- when a step is made


class Lookahead(o.Optimizer):  # type: ignore[name-defined, misc]
    """Hands the gradients to another optimizer, as wrappers do."""

    def __init__(self, inner: Any) -> None:
        super().__init__(learning_rate=0.1)
        self.inner = inner


class Assertive(o.SGD):  # type: ignore[name-defined, misc]
    """Raises an error without a word."""

    def apply(self, gradients: Any, variables: Any = None) -> None:
        raise AssertionError


def _overriding(name: str) -> Any:
    return type("Own", (o.SGD,), {name: lambda self, *args, **options: None})(0.1)


_WHOLE, _SCALE = "accumulate must be", "loss.scale must be"
MADE: dict[str, tuple[Callable[[], Any], str]] = {
    "a name": (lambda: _with("adam"), r"keras\.optimizers\.Optimizer, found"),
    "a class": (lambda: _with(o.Adam), r"keras\.optimizers\.Optimizer, found"),
    "a loss scale of Keras": (lambda: _with(o.LossScaleOptimizer(o.SGD())), "LossScaleOptimizer.*loss_scale="),
    "accumulation by Keras": (lambda: _with(o.SGD(gradient_accumulation_steps=2)), "accumulate=2"),
    "a factor of the loss": (lambda: _with(o.SGD(loss_scale_factor=8.0)), r"loss_scale=8\.0"),
    "a wrapper": (lambda: _with(Lookahead(o.Adam())), "Lookahead .*Adam, in its attribute 'inner'"),
    "apply_gradients": (lambda: _with(_overriding("apply_gradients")), "Own overrides apply_gradients"),
    "scale_loss": (lambda: _with(_overriding("scale_loss")), "Own overrides scale_loss"),
    "accumulate 0": (lambda: _step(accumulate=0), _WHOLE),
    "accumulate 1.5": (lambda: _step(accumulate=1.5), _WHOLE),
    "clip_norm": (lambda: _step(clip_norm=-1.0), "clip_norm must be"),
    "clip_value": (lambda: _step(clip_value=float("nan")), "clip_value must be"),
    "two clips": (lambda: _step(clip_norm=1.0, clip_value=2.0), r"clip_norm=1\.0 and clip_value=2\.0"),
    "ema 0": (lambda: _step(ema=0), "ema must be"),
    "ema nan": (lambda: _step(ema=float("nan")), "ema must be"),
    "loss_scale Dynamic": (lambda: _step(loss_scale="Dynamic"), _SCALE),
    "loss_scale -2": (lambda: _step(loss_scale=-2.0), _SCALE),
    "loss_scale inf": (lambda: _step(loss_scale=float("inf")), _SCALE),
    "loss_scale True": (lambda: _step(loss_scale=True), _SCALE),
    "growth_steps": (lambda: LossScale(growth_steps=0), "growth_steps must be"),
    "not compiled": (lambda: mk.train.Step.from_compiled(_net()), r"not compiled.*model\.compile"),
    "compute before build": (lambda: _step().compute((np.zeros((2, 4)), np.zeros((2, 1)))), r"step\.build\(strategy\)"),
}
if hasattr(o, "MultiOptimizer"):
    MADE["several in one"] = (lambda: _with(o.MultiOptimizer(o.OptimizerMap(o.SGD()))), "MultiOptimizer")


@pytest.mark.parametrize(("make", "words"), MADE.values(), ids=MADE)
def test_when_a_step_is_made(make: Callable[[], Any], words: str) -> None:
    with pytest.raises(StepError, match=words):
        make()


# --- when a loop is made


@pytest.mark.parametrize("where", KINDS[1:], ids=str)
def test_variables_made_outside_of_the_scope(where: Any, strategy_of: Any) -> None:
    """In none, or in that of another strategy; what is refused is as it was."""
    strategy, other, nowhere = strategy_of(*where), strategy_of("mirrored", 4), contextlib.nullcontext()
    for of_model, of_optimizer in ((nowhere, nowhere), (nowhere, strategy.scope()), (strategy.scope(), nowhere)):
        with of_model:
            model = _net()
        with of_optimizer:
            optimizer = o.Adam(0.1)
        with pytest.raises(StepError, match=r"with strategy\.scope\(\)"):
            mk.train.Loop(strategy, mk.train.Step(model, optimizer, loss="mse"))
        assert not optimizer.built
        assert not model.compiled
    with other.scope():
        model, optimizer = _net(), o.SGD(0.1)
    with pytest.raises(StepError, match=r"scope"):
        mk.train.Loop(strategy, mk.train.Step(model, optimizer, loss="mse"))


def test_a_layer_that_is_adapted_after_the_scope(strategy_of: Any, numbers: Any) -> None:
    """It has no variables before."""
    strategy = strategy_of("mirrored", 2)
    with strategy.scope():
        layer = L.Normalization()
        model = keras.Sequential([layer, L.Dense(1)])
        model.compile("sgd", "mse")
    layer.adapt(numbers[0])
    with pytest.raises(StepError, match=r"'normalization.*/mean' was not .*`adapt`"):
        mk.fit(model, *numbers, verbose=0)


def _frozen() -> Any:
    model = _net()
    model.trainable = False
    return model


def _half(**options: Any) -> Any:
    with with_policy("mixed_float16"):
        return sequential((4,), L.Dense(1, **options))


def _narrow() -> Any:
    model = sequential((16,), L.Dense(16, name="narrow"))
    model.layers[0].quantize("float8")
    return model


@pytest.mark.parametrize(
    ("net", "options", "words"),
    [
        (lambda: "mlp", {}, r"found 'mlp'.*mk\.models\.create"),
        (_frozen, {}, "no trainable variables"),
        (_half, {}, r"computes in float16.*loss_scale=\"dynamic\""),
        (lambda: _half(dtype="float16"), {"loss_scale": "dynamic"}, r"weights in float16.*mixed_float16"),
        (_narrow, {}, r"narrow/\w+' .*mixed_bfloat16"),
    ],
    ids=["no model", "nothing to train", "float16 without a scale", "weights in float16", "float8"],
)
def test_models(net: Any, options: dict[str, Any], words: str, make_loop: Any) -> None:
    with pytest.raises(StepError, match=words):
        make_loop(("one_device", 1), net, **options)


class Twice(keras.Sequential):  # type: ignore[name-defined, misc]
    """Its step makes two updates, so that each replica runs it with its own variables."""

    def train_step(self, data: Any) -> Any:
        for _ in range(2):
            logs = super().train_step(data)
        return logs


def test_float8_in_a_step_with_several_updates(strategy_of: Any) -> None:
    strategy = strategy_of("mirrored", 2)
    with strategy.scope():
        model = Twice([keras.Input((16,)), L.Dense(16, name="narrow")])
        model.layers[0].quantize("float8")
        model.compile(o.SGD(0.1), "mse", jit_compile=False)
    loop = mk.train.Loop(strategy, mk.train.Step.from_compiled(model))
    with pytest.raises(StepError, match=r"narrow/\w+' .*mixed_bfloat16"):
        loop.fit(plain_dataset(np.zeros((40, 16)), np.zeros((40, 16)), batch=20), verbose=0)


def test_a_step_of_another_strategy_and_the_optimizer_of_another_model(make_loop: Any, strategy_of: Any) -> None:
    loop = make_loop(("mirrored", 2), _net)
    with pytest.raises(StepError, match="built for another strategy"):
        mk.train.Loop(strategy_of("mirrored", 4), loop.step)
    with loop.strategy.scope():
        model = _net()
    with pytest.raises(StepError, match=r"other variables.*new optimizer"):
        mk.train.Loop(loop.strategy, mk.train.Step(model, loop.step.optimizer, loss="mse"))


# --- with the first batch


def _two_outputs() -> Any:
    inputs = keras.Input((4,))
    return keras.Model(inputs, {"a": L.Dense(1, name="a")(inputs), "b": L.Dense(1, name="b")(inputs)})


def _lipschitz() -> Any:
    """Within another layer; a layer of the user's own: test_silent_differences.py."""
    layer = L.SpectralNormalization(L.Dense(2), name="lipschitz")
    return sequential((4,), L.Reshape((2, 2)), L.TimeDistributed(layer), L.Flatten(), L.Dense(1))


class _Draws(L.Layer):  # type: ignore[name-defined, misc]
    def __init__(self, draw: Any) -> None:
        super().__init__()
        self.draw = draw

    def call(self, x: Any) -> Any:
        return x + self.draw(x)


def _drawing(draw: Any) -> Any:
    return lambda: sequential((4,), _Draws(draw), L.Dense(1))


class _Called(keras.losses.Loss):
    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        return tf.reduce_sum((y_true - y_pred) ** 2)


class _Forgets(keras.metrics.Mean):
    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        super().update_state(tf.abs(y_true - y_pred))

    def result(self) -> Any:
        found = super().result()
        self.total.assign(0.5 * self.total)
        return found


XY, X, A, AB, AQ = (None, (), ("a",), ("a", "b"), ("a", "q"))  # what the targets are
BY_BATCH: dict[str, tuple[Any, Any, dict[str, Any], str]] = {
    "unknown loss": (XY, _net, {"loss": "mean_sqared_error"}, "loss .*mean_sqared_error"),
    "a number": (XY, _net, {"loss": 7}, "loss .*7"),
    "no loss": (XY, _net, {"loss": None}, "No loss to compute"),
    "sums": (XY, _net, {"loss": keras.losses.Huber(reduction="none")}, r"Huber\(reduction='none'\) minimizes a sum"),
    "a result that assigns": (XY, _net, {"metrics": [_Forgets("late")]}, "more to 'late/total' than to add"),
    "a sum by a __call__ of its own": (XY, _net, {"loss": _Called()}, "The loss of a batch"),
    "cut off": (XY, _net, {"loss": lambda y, p: tf.stop_gradient(p[:, 0])}, "no gradient"),
    "unknown metric": (XY, _net, {"metrics": ["acuracy"]}, "metric .*acuracy"),
    "no target": (X, _net, {"metrics": ["accuracy"]}, r"\(x, y\), with a target"),
    "one target of two": (A, _two_outputs, {}, "KeyError.*y_true"),
    "one loss in a list": (AB, _two_outputs, {"loss": ["mse"]}, "loss and metrics for this data"),
    "a loss of nothing": (AB, _two_outputs, {"loss": {"a": "mse", "c": "mse"}}, r"\('c',\) in the `loss`"),
    "metrics of nothing": (AB, _two_outputs, {"loss": {"a": "mse"}, "metrics": {"z": ["mae"]}}, "Invalid `metrics`"),
    "metrics, no target": (A, _two_outputs, {"loss": {"a": "mse"}, "metrics": {"b": ["mae"]}}, "KeyError.*b"),
    "a target of nothing": (AQ, _two_outputs, {"loss": {"a": "mse"}}, "loss and metrics for this data"),
    "a layer assigns its kernel": (XY, _lipschitz, {}, "assigns the weight '.*lipschitz.*kernel'"),
    "no generator": (XY, _drawing(lambda x: keras.random.normal((1,))), {}, "SeedGenerator"),
    "TensorFlow's draws": (XY, _drawing(lambda x: tf.random.normal((1,))), {}, "SeedGenerator"),
}


@pytest.mark.parametrize(("targets", "net", "options", "words"), BY_BATCH.values(), ids=BY_BATCH)
def test_with_the_first_batch(
    targets: Any, net: Any, options: dict[str, Any], words: str, make_loop: Any, numbers: Any
) -> None:
    x, y = numbers
    parts = (x, y) if targets is XY else (x, dict.fromkeys(targets, y)) if targets else (x,)
    with pytest.raises(StepError, match=words) as error:
        make_loop(("mirrored", 2), net, **options).fit(tf.data.Dataset.from_tensor_slices(parts).batch(30), verbose=0)
    assert isinstance(error.value, MirrorkitError)
    assert "in user code" not in str(error.value), "AutoGraph has wrapped the message"


def test_an_optimizer_that_is_no_function(make_loop: Any, numbers: Any) -> None:
    with pytest.raises(StepError, match=r"AssertionError"):
        make_loop(("one_device", 1), _net, Assertive).fit(plain_dataset(*numbers, batch=20), verbose=0)


# --- later


def test_a_layer_without_weights_of_its_own_is_frozen_too(make_loop: Any, numbers: Any) -> None:
    """A frozen BatchNormalization uses its statistics and keeps them; the traced step would go on as before."""
    normalize = {"center": False, "scale": False, "name": "normalize"}
    loop = make_loop(("mirrored", 2), lambda: sequential((4,), L.BatchNormalization(**normalize), L.Dense(1)))

    class Freeze(keras.callbacks.Callback):  # type: ignore[name-defined, misc]
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.model.layers[0].trainable = False

    with pytest.raises(StepError, match=r"`trainable` of '.*normalize'"):
        loop.fit(plain_dataset(*numbers, batch=30), epochs=2, callbacks=[Freeze()], verbose=0)
    assert loop.position.epoch == 1


def test_layers_frozen_behind_the_steps_back(make_loop: Any, numbers: Any) -> None:
    """Fine-tuning takes a new step, and callbacks reach its optimizer."""
    loop = make_loop(("mirrored", 2), _net)
    data = plain_dataset(*numbers, batch=30)
    loop.fit(data, verbose=0)
    model = loop.step.model
    model.layers[0].trainable = False
    with pytest.raises(StepError, match=r"trainable.*new Step"):
        loop.fit(data, verbose=0)
    before = model.get_weights()
    with loop.strategy.scope():
        optimizer = o.SGD(0.01)
    tuned = mk.train.Loop(loop.strategy, mk.train.Step(model, optimizer, loss="mae"))
    scheduler = keras.callbacks.LearningRateScheduler(lambda epoch: 0.02)
    history = tuned.fit(data, callbacks=[scheduler], verbose=0).history
    np.testing.assert_allclose(history["learning_rate"], [0.02])
    assert float(optimizer.learning_rate.numpy()) == pytest.approx(0.02)
    changed = [not np.array_equal(old, new) for old, new in zip(before, model.get_weights(), strict=True)]
    assert changed == [False, False, True, True]
