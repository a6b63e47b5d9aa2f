"""What a step makes of a few rows is what Keras makes of them; each part that is broken is named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from training_helpers import line_net, plain_dataset, sequential

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.errors import StepError
from mirrorkit.train.first_batch.keras_results import compare_with_keras
from mirrorkit.train.keras_model.layer_state import LayerState
from mirrorkit.train.totals import losses, metrics

L = keras.layers
rng = np.random.default_rng(0)
X = rng.normal(size=(12, 6)).astype("float32")
NUMBERS = rng.uniform(0.1, 0.9, size=(12, 3)).astype("float32")
BITS = rng.integers(0, 2, size=(12, 3)).astype("float32")
CLASSES = np.eye(3, dtype="float32")[rng.integers(0, 3, 12)]
WEIGHTS = rng.uniform(0.5, 2, size=12).astype("float32")


@pytest.fixture
def judge(make_loop: Any, caplog: pytest.LogCaptureFixture) -> Any:
    """`judge(net, *batch, training=True, **Step's options)` compares the step with Keras; red where it could not."""

    def compare(net: Any, *batch: Any, training: bool = True, **options: Any) -> None:
        loop = make_loop(("mirrored", 2), net, **options)
        step = loop.step.for_loop(loop.strategy)
        tensors = tf.nest.map_structure(tf.constant, batch)
        step.prepare(tensors)
        with caplog.at_level("INFO", "mirrorkit"):
            compare_with_keras(step, step.unpack(tensors), training=training)
        assert "could not be compared" not in caplog.text

    return compare


def _of_keras(module: Any, base: type) -> list[type]:
    found = {value for value in vars(module).values() if isinstance(value, type) and issubclass(value, base)}
    return sorted(found - {base}, key=lambda kind: kind.__name__)


def _dense(activation: str) -> Any:
    return lambda: sequential((6,), L.Dense(5, "tanh"), L.Dense(3, activation))


# All but those of sequences and of the whole batch:
KINDS = {
    kind.__name__: kind
    for kind in _of_keras(keras.losses, keras.losses.Loss)
    if kind.__name__ not in {"CTC", "Circle", "Dice", "Tversky"}
}


def _targets(name: str) -> np.ndarray:
    if "Categorical" in name:
        return CLASSES.argmax(1) if name.startswith(("Sparse", "CategoricalGeneralized")) else CLASSES
    return BITS if "Binary" in name else NUMBERS


def _last(name: str) -> str:
    return "softmax" if "Categorical" in name else "sigmoid"


FAST = ("MeanSquaredError", "SparseCategoricalCrossentropy", "BinaryCrossentropy")


@pytest.mark.parametrize(
    ("names", "weighted"),
    [(FAST, True), *(pytest.param(tuple(KINDS), weighted, marks=pytest.mark.slow) for weighted in (False, True))],
    ids=["some, weighted", "all", "all, weighted"],
)
def test_losses_of_keras(names: tuple[str, ...], weighted: bool, judge: Any) -> None:
    """Each of an output of its own, whose layer has a gradient of its own."""

    def net() -> Any:
        inputs = keras.Input((6,))
        hidden = L.Dense(5, "tanh")(inputs)
        return keras.Model(inputs, {name: L.Dense(3, _last(name), name=name)(hidden) for name in names})

    weights = [dict.fromkeys(names, WEIGHTS)] if weighted else []
    judge(net, X, {name: _targets(name) for name in names}, *weights, loss={name: KINDS[name]() for name in names})


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name not in FAST)) for name in KINDS])
def test_losses_that_are_divided_by_the_weights(name: str, judge: Any) -> None:
    loss = KINDS[name](reduction="mean_with_sample_weight")
    judge(_dense(_last(name)), X, _targets(name), WEIGHTS, loss=loss)


def test_layers_that_draw_normalize_regularize_and_mask(judge: Any) -> None:
    def net() -> Any:
        layers = [L.GaussianNoise(0.3), L.BatchNormalization(), L.Dropout(0.5), L.ActivityRegularization(0.1)]
        return sequential((6,), L.Dense(5, "relu", kernel_regularizer="l2"), *layers, L.Dense(3))

    def recurrent() -> Any:
        return sequential((None,), L.Embedding(7, 4, mask_zero=True), L.LSTM(3, return_sequences=True))

    ids = rng.integers(0, 7, size=(12, 5))
    for training in (True, False):
        judge(net, X, NUMBERS, WEIGHTS, training=training, metrics=["mae"], weighted_metrics=["mse"])
        judge(recurrent, ids, rng.normal(size=(12, 5, 3)).astype("float32"), training=training, metrics=["mae"])


def _twice_the_loss(original: Any) -> Any:
    return lambda loss, output: original(loss, output)._replace(numerator=2 * original(loss, output).numerator)


def test_a_loss_scale_that_overflows_at_first(judge: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def net() -> Any:
        return sequential((6,), L.Dense(3, dtype="mixed_float16"))

    judge(net, X, 100 * NUMBERS, loss_scale=2.0**60)
    monkeypatch.setattr(losses, "loss_sum", _twice_the_loss(losses.loss_sum))
    with pytest.raises(StepError, match=r"has the norm [\d.]+, in Keras [\d.]+"):
        judge(net, X, 100 * NUMBERS, loss_scale=2.0**60)


def _more(original: Any) -> Any:
    return lambda *args: [None if value is None else value + 1 for value in original(*args)]


BROKEN = [
    (losses, "loss_sum", _twice_the_loss, "gradient of .*in Keras.*log 'loss' is"),
    (metrics.Metrics, "sums", _more, "the log 'mae' is"),
    (LayerState, "new_values", _more, "the state '.*moving_mean'"),
]


@pytest.mark.parametrize(("owner", "name", "broken", "words"), BROKEN, ids=[row[1] for row in BROKEN])
def test_each_part_that_is_broken_is_named(
    owner: Any, name: str, broken: Any, words: str, judge: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def net() -> Any:
        return sequential((6,), L.Dense(5), L.BatchNormalization(), L.Dense(3))

    judge(net, X, NUMBERS, metrics=["mae"])
    monkeypatch.setattr(owner, name, broken(getattr(owner, name)))
    with pytest.raises(StepError, match=words):
        judge(net, X, NUMBERS, metrics=["mae"])


class Halving(keras.optimizers.SGD):  # type: ignore[name-defined, misc]
    """Keeps the rate where no update sees it."""

    share = 2.0

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        self.share /= 2
        super().update_step(gradient * self.share, variable, learning_rate)


class LeavesOutThirds(keras.optimizers.SGD):  # type: ignore[name-defined, misc]
    """Counts its updates where a step does not see it; the first two are as they should be."""

    calls = 0

    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        self.__dict__["calls"] = self.calls + 1
        return super().apply([(self.calls % 3 > 0) * gradient for gradient in grads], trainable_variables)


class Momentum(keras.optimizers.Optimizer):  # type: ignore[name-defined, misc]
    """As Keras documents an optimizer."""

    def build(self, variables: Any) -> None:
        super().build(variables)
        self.kept = [self.add_variable_from_reference(variable, "kept") for variable in variables]

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        kept = self.kept[self._get_variable_index(variable)]
        self.assign(kept, 0.9 * kept + gradient)
        self.assign_sub(variable, learning_rate * kept)


class ByRank(keras.optimizers.SGD):  # type: ignore[name-defined, misc]
    """Has an argument that its configuration leaves out."""

    def __init__(self, learning_rate: float, factors: Any = None, **options: Any) -> None:
        super().__init__(learning_rate, **options)
        self.factors = factors

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        super().update_step(gradient, variable, learning_rate * self.factors[len(variable.shape)])


def test_an_optimizer_that_its_configuration_does_not_make_again_is_not_compared(make_loop: Any, caplog: Any) -> None:
    loop = make_loop(("mirrored", 2), _dense("relu"), optimizer=lambda: ByRank(0.1, {1: 2.0, 2: 1.0}))
    with caplog.at_level("INFO", "mirrorkit"):
        loop.fit(mk.data.batches(mk.data.arrays(X, NUMBERS), global_batch_size=4), verbose=0)
    assert "ByRank could not be compared with its apply_gradients" in caplog.text


def test_an_optimizer_of_the_users_own(judge: Any) -> None:
    judge(_dense("relu"), X, NUMBERS, optimizer=lambda: Momentum(0.1))
    for kind in (Halving, LeavesOutThirds):
        with pytest.raises(StepError, match=f"12 updates of {kind.__name__}"):
            judge(_dense("relu"), X, NUMBERS, optimizer=lambda kind=kind: kind(0.1))


def test_what_keras_cannot_compute_trains(make_loop: Any, caplog: pytest.LogCaptureFixture) -> None:
    data = plain_dataset(np.repeat(X[:, None], 5, 1), np.repeat(NUMBERS[:, None], 5, 1), WEIGHTS, batch=4)
    with caplog.at_level("INFO", "mirrorkit"):
        make_loop(("one_device", 1), lambda: sequential((5, 6), L.Dense(3))).fit(data, verbose=0)
    assert "A step could not be compared with Keras: InvalidArgumentError" in caplog.text


def test_fit_and_evaluate_ask_once_on_any_number_of_replicas(
    make_loop: Any, numbers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(losses, "loss_sum", _twice_the_loss(losses.loss_sum))
    data = plain_dataset(*numbers, batch=20)
    for where in (("one_device", 1), ("mirrored", 2)):
        loop = make_loop(where, line_net)
        before = loop.step.model.get_weights()
        with pytest.raises(StepError, match=r"what Keras's fit does.*unchecked"):
            loop.fit(data, verbose=0)
        with pytest.raises(StepError, match="what Keras's evaluate does"):
            loop.evaluate(data)
        np.testing.assert_array_equal(before[0], loop.step.model.get_weights()[0])
    make_loop(where, line_net, unchecked=("keras",)).fit(data, verbose=0)


@pytest.mark.parametrize("where", [pytest.param(("one_device", 1), marks=pytest.mark.slow), ("mirrored", 2)], ids=str)
def test_evaluation_is_compared_after_a_training_too(
    where: Any, make_loop: Any, numbers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, data = make_loop(where, line_net), plain_dataset(*numbers, batch=20)
    loop.fit(data, verbose=0)
    monkeypatch.setattr(losses, "loss_sum", _twice_the_loss(losses.loss_sum))
    with pytest.raises(StepError, match="evaluate does: the log 'loss'"):
        loop.evaluate(data)


def test_a_layer_may_use_a_seed_as_it_is(judge: Any) -> None:
    """As Keras's RandomElasticTransform does; its other layers cast it first."""

    class Noise(L.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.seeds = keras.random.SeedGenerator(5)

        def call(self, x: Any, training: bool = False) -> Any:
            return x + tf.random.stateless_normal(tf.shape(x), self.seeds.next()) if training else x

    judge(lambda: sequential((6,), Noise(), L.Dense(3)), X, NUMBERS)


def test_outputs_that_are_divided_by_their_own_weights(judge: Any) -> None:
    def net() -> Any:
        inputs = keras.Input((6,))
        return keras.Model(inputs, {name: L.Dense(3, name=name)(inputs) for name in "ab"})

    loss = {name: keras.losses.MeanSquaredError(reduction="mean_with_sample_weight") for name in "ab"}
    judge(net, X, dict.fromkeys("ab", NUMBERS), {"a": WEIGHTS, "b": WEIGHTS[::-1].copy()}, loss=loss)
