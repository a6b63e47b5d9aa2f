"""What a step would train as something else than Keras's fit does: right, or refused by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from installed_versions import needs_keras
from training_helpers import THREE, fit_both, keras_twin, largest_difference, plain_dataset, sequential

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.errors import StepError

L = keras.layers


# --- overrides of what Keras's fit calls


def _twice(model: Any, *args: Any, **options: Any) -> Any:
    return 2 * keras.Model.compute_loss(model, *args, **options)


def _own_step(model: Any, data: Any) -> Any:
    return {"loss": tf.constant(0.0)}


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("train_step", _own_step),
        ("test_step", _own_step),
        ("compute_loss", _twice),
        ("compute_metrics", lambda model, x, y, y_pred, sample_weight=None: {}),
    ],
)
def test_an_overridden_step_of_keras(name: str, function: Any) -> None:
    cls = type("Own", (keras.Model,), {name: function})
    inputs = keras.Input((4,))
    model, optimizer = cls(inputs, L.Dense(1)(inputs)), keras.optimizers.SGD(0.1)
    with pytest.raises(StepError, match=f"Own overrides {name}, .*from_compiled") as refused:
        mk.train.Step(model, optimizer, loss="mse")
    assert name == "compute_metrics" or "Step.from_loss(model, optimizer, loss_fn)" in str(refused.value)
    mk.train.Step.from_loss(model, optimizer, lambda batch: batch)
    for loss in ("mse", None):
        model.compile(optimizer, loss=loss)
        mk.train.Step.from_compiled(model)  # which runs it


def test_a_model_whose_trainable_weights_are_a_part(strategy_of: Any, numbers: Any) -> None:
    class Part(keras.Model):
        @property
        def trainable_weights(self) -> Any:
            return self.layers[-1].trainable_weights

    strategy = strategy_of("one_device", 1)
    with strategy.scope():
        inputs = keras.Input((4,))
        model, optimizer = Part(inputs, L.Dense(1)(L.Dense(2)(inputs))), keras.optimizers.SGD(0.1)
    loop = mk.train.Loop(strategy, mk.train.Step(model, optimizer, loss="mse"))
    with pytest.raises(StepError, match="trainable_weights of Part"):
        loop.fit(plain_dataset(*numbers, batch=20), verbose=0)


def test_an_overridden_predict_step_is_refused_where_it_would_be_called(make_loop: Any, numbers: Any) -> None:
    class Shifted(keras.Sequential):
        def predict_step(self, data: Any) -> Any:
            return super().predict_step(data) + 1

    loop = make_loop(("mirrored", 2), lambda: Shifted([keras.Input((4,)), L.Dense(1)]))
    data = plain_dataset(*numbers, batch=20)
    loop.evaluate(data)
    of_loss = mk.train.Step.from_loss(loop.step.model, loop.step.optimizer, lambda batch: batch[1][:, 0])
    for one in (loop, mk.train.Loop(loop.strategy, of_loss)):
        with pytest.raises(StepError, match="Shifted overrides predict_step"):
            one.predict(data)


def test_a_compiled_models_predict_step_is_run_and_compared_with_its_parts(strategy_of: Any, numbers: Any) -> None:
    class Shifted(keras.Sequential):
        by_mean = False

        def predict_step(self, data: Any) -> Any:
            found = super().predict_step(data)
            return found + (tf.reduce_mean(found) if self.by_mean else 1)

    with strategy_of("mirrored", 2).scope():
        model = Shifted([keras.Input((4,)), L.Dense(1)])
        model.compile("sgd", "mse")
    np.testing.assert_allclose(mk.predict(model, numbers[0]), model.predict(numbers[0], verbose=0), atol=1e-6)
    model.by_mean = True
    with strategy_of("mirrored", 2).scope():
        model.compile("sgd", "mse")
    with pytest.raises(StepError, match=r"What the model predicts .* is not what parts of them give"):
        mk.predict(model, numbers[0])


@pytest.mark.slow
def test_an_overridden_call_of_the_model_counts(make_loop: Any, numbers: Any) -> None:
    class Doubled(keras.Sequential):
        def __call__(self, *args: Any, **options: Any) -> Any:
            return 2 * super().__call__(*args, **options)

    def net() -> Any:
        return Doubled([keras.Input((4,)), L.Dense(1)])

    fit_both(make_loop, net, plain_dataset(*numbers, batch=20), optimizer=lambda: keras.optimizers.SGD(0.01))


# --- masks that a loss puts on its values


def test_ignored_classes_do_not_count(make_loop: Any) -> None:
    """With the weights of positions; without them: the next test."""

    def net() -> Any:
        return sequential((6, 2), L.Dense(3))

    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(18, 6, 2)).astype("float32"), rng.integers(0, 3, (18, 6))
    y[rng.uniform(size=y.shape) < np.linspace(0.1, 0.9, 18)[:, None]] = 255  # shares differ in what they ignore
    weight = rng.uniform(0.5, 2, (18, 6)).astype("float32")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=255)
    fit_both(make_loop, net, plain_dataset(x, y, weight, batch=18), where=THREE, loss=loss)


# --- several divisors in one step


def _sentences() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    tokens = rng.integers(1, 5, (24, 6)).astype("int32")
    tokens[np.arange(6)[None] >= np.linspace(1, 7, 24).astype(int)[:, None]] = 0
    return tokens, rng.normal(size=(24, 6, 1)).astype("float32")


def _masked_and_added() -> Any:
    inputs = keras.Input((6,), dtype="int32")
    hidden = L.Dense(4, activation="tanh")(L.Embedding(5, 4, mask_zero=True)(inputs))
    outputs = L.Dense(1, kernel_regularizer="l2", activity_regularizer=keras.regularizers.L2(0.3))(hidden)
    return keras.Model(inputs, outputs)


@needs_keras((3, 14), "an activity regulariser that is a mean over the rows")
@pytest.mark.parametrize("where", [pytest.param(("one_device", 1), marks=pytest.mark.slow), ("mirrored", 2)], ids=str)
def test_a_masked_loss_beside_one_that_layers_add(where: Any, make_loop: Any) -> None:
    tokens, y = _sentences()
    loop = make_loop(where, _masked_and_added, accumulate=2, loss_scale=64.0)
    model = keras_twin(_masked_and_added, loop)
    model.compile(keras.optimizers.SGD(0.1), "mse")
    whole = plain_dataset(tokens, y, batch=24)
    model.fit(whole, epochs=3, verbose=0)
    report = loop.fit(plain_dataset(tokens, y, batch=12), epochs=3, verbose=0, validation_data=whole)
    assert largest_difference(loop.step.model.get_weights(), model.get_weights()) < 1e-6
    assert report.history["val_loss"][-1] == pytest.approx(model.evaluate(whole, verbose=0), rel=1e-5)


def test_a_loss_that_is_not_finite_is_found_in_any_part(make_loop: Any) -> None:
    class Infinite(L.Layer):  # type: ignore[name-defined]
        def call(self, x: Any) -> Any:
            self.add_loss(keras.ops.log(0 * keras.ops.mean(x)))
            return x

    def net() -> Any:
        return sequential((6,), L.Embedding(5, 4, mask_zero=True), Infinite(), L.Dense(1))

    with pytest.raises(mk.errors.NonFiniteLossError, match="training step 0"):
        make_loop(("mirrored", 2), net, unchecked=["add_loss"]).fit(plain_dataset(*_sentences(), batch=24), verbose=0)


# --- assignments in a call that an update would not write


def test_a_metric_that_the_model_itself_updates_in_its_call(make_loop: Any, numbers: Any) -> None:
    class Watched(keras.Sequential):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__([keras.Input((4,)), L.Dense(1)])
            self.size = keras.metrics.Mean(name="size")

        def call(self, x: Any, **options: Any) -> Any:
            line = super().call(x, **options)
            self.size.update_state(line**2)
            return line

    data = plain_dataset(*numbers, batch=20)
    found, loop, _ = fit_both(make_loop, Watched, data, fit={"validation_data": data})
    assert {"size", "val_size"} <= set(found)
    loop.predict(data)


def test_a_variable_of_nobody_that_is_assigned(make_loop: Any, numbers: Any) -> None:
    hidden = keras.Variable(0.0)

    class Hiding(L.Layer):  # type: ignore[name-defined]
        def call(self, x: Any) -> Any:
            hidden.assign(keras.ops.max(x))
            return x

    loop = make_loop(("one_device", 1), lambda: sequential((4,), Hiding(), L.Dense(1)))
    with pytest.raises(StepError, match=r"the Keras variable 'variable', .*add_weight"):
        loop.fit(plain_dataset(*numbers, batch=20), verbose=0)
