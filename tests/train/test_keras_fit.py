"""mk.fit, mk.evaluate and mk.predict in place of Keras's methods, and nothing else changed: weights, logs and outputs.

`USES` are calls as Keras's documentation shows them. Keras runs them on one device, mirrorkit on 1 and 3 replicas.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from step_helpers import with_policy
from training_helpers import assert_same_logs, largest_difference

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.errors import DataError, StepError
from mirrorkit.train.input.keras_data import PyBatches, keras_data

RNG = np.random.default_rng(0)
X = RNG.normal(size=(70, 3))  # float64, of which Keras makes float32
Y = RNG.normal(size=(70, 2)).astype("float32")
WEIGHT = RNG.uniform(size=70)
CLASSES = RNG.integers(0, 4, 70)
PAIR, TWO = {"a": X, "b": X[::-1].copy()}, {"u": Y, "v": Y[:, :1]}


class Batches(keras.utils.PyDataset):
    """Five batches of 14; it counts the epochs that have ended."""

    def __init__(self) -> None:
        super().__init__()
        self.ended = 0

    def __len__(self) -> int:
        return 5

    def __getitem__(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        return X[14 * number : 14 * number + 14], Y[14 * number : 14 * number + 14]

    def on_epoch_end(self) -> None:
        self.ended += 1


def generator() -> Iterator[tuple[np.ndarray, np.ndarray]]:
    while True:
        yield from (Batches()[number] for number in range(5))


def dataset() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((X.astype("float32"), Y)).batch(16)


def plain() -> Any:
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(5, "tanh"), keras.layers.Dense(2)])
    model.compile("adam", "mse", metrics=["mse", "mae"])
    return model


def of_one() -> Any:
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def of_classes() -> Any:
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4, "softmax")])
    model.compile("sgd", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def of_two() -> Any:
    a, b = keras.Input((3,), name="a"), keras.Input((3,), name="b")
    joined = keras.layers.Dense(4)(a) + keras.layers.Dense(4)(b)
    outputs = {"u": keras.layers.Dense(2, name="u")(joined), "v": keras.layers.Dense(1, name="v")(joined)}
    model = keras.Model({"a": a, "b": b}, outputs)
    model.compile("sgd", {"u": "mse", "v": "mae"}, metrics={"u": ["mae"], "v": ["mse"]})
    return model


Call = Callable[[Callable[..., Any]], Any]

# What is called is given `fit`, to which the model is bound.
USES: dict[str, tuple[Callable[[], Any], Call]] = {
    "arrays": (plain, lambda fit: fit(X, Y, shuffle=False)),
    "by position": (plain, lambda fit: fit(X, Y, 16, 2, 0, shuffle=False)),
    "tensors": (plain, lambda fit: fit(tf.constant(X), tf.constant(Y), batch_size=16, shuffle=False)),
    "sample weights": (plain, lambda fit: fit(X, Y, batch_size=16, sample_weight=WEIGHT, shuffle=False)),
    "split": (plain, lambda fit: fit(X, Y, batch_size=16, epochs=2, validation_split=0.3, shuffle=False)),
    "validation": (plain, lambda fit: fit(X, Y, validation_data=(X[:20], Y[:20]), shuffle=False)),
    "weighted validation": (
        plain,
        lambda fit: fit(
            X,
            Y,
            batch_size=16,
            epochs=2,
            validation_data=(X[:20], Y[:20], WEIGHT[:20]),
            validation_batch_size=7,
            shuffle=False,
        ),
    ),
    "dataset": (plain, lambda fit: fit(dataset(), epochs=2, validation_data=dataset(), shuffle=False)),
    "steps of arrays": (plain, lambda fit: fit(X, Y, batch_size=16, epochs=2, steps_per_epoch=2, shuffle=False)),
    "steps from a later epoch on": (
        plain,
        lambda fit: fit(X, Y, batch_size=16, initial_epoch=1, epochs=3, steps_per_epoch=2, shuffle=False),
    ),
    "steps alone": (plain, lambda fit: fit(X, Y, epochs=2, steps_per_epoch=3, shuffle=False)),
    "PyDataset": (plain, lambda fit: fit(Batches(), epochs=2, shuffle=False, validation_data=Batches())),
    "steps of a PyDataset": (plain, lambda fit: fit(Batches(), epochs=2, steps_per_epoch=2, shuffle=False)),
    "generator": (plain, lambda fit: fit(generator(), epochs=2, steps_per_epoch=4)),
    "class weights": (
        of_classes,
        lambda fit: fit(X, CLASSES, batch_size=16, class_weight={0: 1.0, 1: 2.0, 2: 0.5}, shuffle=False),
    ),
    "later epochs": (
        of_classes,
        lambda fit: fit(
            X,
            CLASSES[:, None],
            initial_epoch=1,
            epochs=3,
            validation_freq=2,
            validation_data=(X, CLASSES),
            shuffle=False,
        ),
    ),
    "one dimension, and shares of one row": (
        of_one,
        lambda fit: fit(X[:50, 0], Y[:50, 0], batch_size=16, shuffle=False),
    ),
    "dicts": (of_two, lambda fit: fit(PAIR, TWO, batch_size=35, epochs=2, shuffle=False, validation_data=(PAIR, TWO))),
    "weights of each output": (
        of_two,
        lambda fit: fit(PAIR, TWO, batch_size=35, shuffle=False, sample_weight={"u": WEIGHT, "v": WEIGHT[::-1]}),
    ),
    "weights of both": (of_two, lambda fit: fit(PAIR, TWO, batch_size=35, shuffle=False, sample_weight=WEIGHT)),
}
FAST = (
    "arrays",
    "split",
    "steps alone",
    "steps of arrays",
    "steps from a later epoch on",
    "one dimension, and shares of one row",
)


def twins(net: Callable[[], Any], strategy: tf.distribute.Strategy) -> tuple[Any, Any]:
    """A model for Keras, and one under the strategy, with the same weights."""
    one = net()
    with strategy.scope():
        other = net()
    other.set_weights(one.get_weights())
    return one, other


@pytest.fixture(scope="module")
def made() -> dict[Any, tuple[Any, Any]]:
    """The twins of each net and strategy, which several tests train one after the other."""
    return {}


def quietly(method: Callable[..., Any], *first: Any) -> Callable[..., Any]:
    return lambda *args, **options: method(*first, *args, **({} if len(args) > 4 else {"verbose": 0}), **options)


CELLS = [
    pytest.param(use, replicas, marks=[] if replicas == 3 and use in FAST else pytest.mark.slow)
    for use in USES
    for replicas in (1, 3)
]


@pytest.mark.parametrize(("use", "replicas"), CELLS)
def test_fit_is_that_of_keras(strategy_of: Any, made: dict[Any, Any], use: str, replicas: int) -> None:
    net, call = USES[use]
    strategy = strategy_of("mirrored" if replicas > 1 else "one_device", replicas)
    model, ours = made.get((net, replicas)) or made.setdefault((net, replicas), twins(net, strategy))
    ours.set_weights(model.get_weights())
    expected = call(quietly(model.fit))
    found = call(quietly(mk.fit, ours))
    assert isinstance(found, keras.callbacks.History)
    assert list(found.history) == list(expected.history)
    assert_same_logs(found.history, expected.history, rtol=2e-5)
    assert found.epoch == expected.epoch
    assert largest_difference(ours.get_weights(), model.get_weights()) < 2e-5


@pytest.fixture(scope="module")
def pair(strategy_of: Any) -> tuple[Any, Any]:
    return twins(plain, strategy_of("mirrored", 3))


@pytest.mark.parametrize(
    "call",
    [
        lambda evaluate: evaluate(X, Y),
        lambda evaluate: evaluate(X, Y, 16, sample_weight=WEIGHT),
        lambda evaluate: evaluate(dataset(), return_dict=True),
        lambda evaluate: evaluate(dataset(), steps=2),
        lambda evaluate: evaluate(dataset().repeat(), steps=2),
        lambda evaluate: evaluate(Batches()),
    ],
)
def test_evaluate_is_that_of_keras(pair: tuple[Any, Any], call: Call) -> None:
    expected, found = call(quietly(pair[0].evaluate)), call(quietly(mk.evaluate, pair[1]))
    assert isinstance(found, dict) == isinstance(expected, dict)
    if isinstance(expected, dict):
        assert_same_logs(found, expected, rtol=2e-5)
    else:
        np.testing.assert_allclose(found, expected, rtol=2e-5)


def test_progress_is_shown_as_asked(pair: tuple[Any, Any], capsys: pytest.CaptureFixture[str]) -> None:
    """By default too, where Keras's progress bar asks for more than a silent evaluation does."""
    for verbose in ("auto", 1, 2, 0):
        mk.evaluate(pair[1], X, Y, batch_size=24, verbose=verbose)
        assert ("3/3" in capsys.readouterr().out) == (verbose != 0)


@pytest.mark.slow
def test_the_results_of_several_outputs_come_in_the_order_of_keras(strategy_of: Any) -> None:
    model, ours = twins(of_two, strategy_of("mirrored", 2))
    expected = model.evaluate(PAIR, TWO, batch_size=70, verbose=0)
    np.testing.assert_allclose(mk.evaluate(ours, PAIR, TWO, batch_size=70, verbose=0), expected, rtol=2e-5)
    outputs = mk.predict(ours, PAIR)
    for name, values in model.predict(PAIR, verbose=0).items():
        np.testing.assert_allclose(outputs[name], values, atol=2e-5)


def my_loss(y: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
    return keras.ops.mean(keras.ops.abs(y - y_pred), -1)


class Trackers(keras.Model):
    """Its metrics are its own, in their order."""

    def __init__(self) -> None:
        super().__init__()
        self.net = keras.layers.Dense(1)
        self.trackers = [keras.metrics.Mean(name) for name in ("total_loss", "kl", "a_loss")]

    @property
    def metrics(self) -> Any:
        return self.trackers

    def call(self, x: Any) -> Any:
        return self.net(x)

    def test_step(self, data: Any) -> Any:
        error = self(data[0]) - data[1]
        for power, tracker in enumerate(self.trackers, start=1):
            tracker.update_state(keras.ops.mean(keras.ops.abs(error) ** power))
        return {tracker.name: tracker.result() for tracker in self.trackers}


@pytest.mark.parametrize("own", [False, True])
def test_the_results_come_in_the_order_of_keras_whatever_their_names(own: bool, strategy_of: Any) -> None:
    def net() -> Any:
        model = Trackers() if own else keras.Sequential([keras.Input((X.shape[1],)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", metrics=None if own else ["mae", my_loss, "mape"])
        model(X[:1])
        return model

    model, ours = twins(net, strategy_of("mirrored", 2))
    y = X[:, :1]
    np.testing.assert_allclose(mk.evaluate(ours, X, y, verbose=0), model.evaluate(X, y, verbose=0), rtol=2e-5)


@pytest.mark.parametrize(
    "call",
    [
        lambda predict: predict(X),
        lambda predict: predict(X, 16),
        lambda predict: predict(dataset(), steps=2),
        lambda predict: predict(Batches()),
    ],
)
def test_predict_is_that_of_keras(pair: tuple[Any, Any], call: Call) -> None:
    expected, found = call(quietly(pair[0].predict)), call(quietly(mk.predict, pair[1]))
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, atol=2e-5)


def test_a_frozen_model_is_evaluated(strategy_of: Any) -> None:
    """It was refused, since it has nothing to train."""

    def frozen() -> Any:
        model = plain()
        model.trainable = False
        model.compile("sgd", "mse", metrics=["mae"])
        return model

    model, ours = twins(frozen, strategy_of("mirrored", 2))
    expected = model.evaluate(X, Y, verbose=0)
    np.testing.assert_allclose(mk.evaluate(ours, X, Y, verbose=0), expected, rtol=2e-5)
    np.testing.assert_allclose(mk.predict(ours, X), model.predict(X, verbose=0), atol=2e-5)


def test_a_shuffle_is_that_of_the_seed_in_the_report(strategy_of: Any) -> None:
    """Keras, fed the same order, trains the same."""
    model, ours = twins(plain, strategy_of("mirrored", 2))
    keras.utils.set_random_seed(7)
    first = mk.fit(ours, X, Y, batch_size=16, epochs=2, verbose=0)
    recipe = mk.data.batches(
        mk.data.arrays(X.astype("float32"), Y), global_batch_size=16, shuffle=True, seed=first.report.seed
    )
    model.fit(recipe.epochs(2), epochs=2, steps_per_epoch=5, verbose=0)
    assert largest_difference(ours.get_weights(), model.get_weights()) < 2e-5
    second = mk.fit(ours, X, Y, batch_size=16, verbose=0)
    assert second.report.seed != first.report.seed
    keras.utils.set_random_seed(7)
    assert mk.fit(ours, X, Y, batch_size=16, verbose=0).report.seed == first.report.seed
    assert mk.fit(ours, X, Y, batch_size=16, verbose=0, seed=3).report.seed == 3
    assert mk.fit(ours, X, Y, batch_size=16, verbose=0, shuffle=False).report.seed is None
    assert mk.fit(ours, X, Y, batch_size=16, verbose=0, shuffle=False, seed=3).report.seed is None


def test_arrays_have_the_dtypes_that_keras_gives_them(strategy_of: Any) -> None:
    """Of floats its floatx; a `train_step` of the user's may see the difference."""
    recipe = keras_data(strategy_of("one_device", 1), {"a": X, "n": [CLASSES]}, Y.astype("float64"), WEIGHT)
    inputs, targets, weights = recipe.element_spec
    assert (inputs["a"].dtype, inputs["n"][0].dtype) == (tf.float32, tf.int64)
    assert (targets.dtype, weights.dtype) == (tf.float32, tf.float32)


def test_the_batches_of_a_pydataset_are_shuffled_anew_in_each_epoch() -> None:
    source = Batches()
    recipe = PyBatches(source, shuffle=True, seed=0)

    def firsts(epoch: int, start: int = 0) -> list[float]:
        return [float(x[0, 0]) for x, _ in recipe.dataset(epoch, start)]

    first = firsts(0)
    assert sorted(first) == sorted(X[::14, 0])
    assert firsts(1) != first
    assert firsts(0, start=2) == first[2:]
    assert source.ended == 4  # once before the first pass, as in Keras, and once for each


class Endless(Batches):
    """It does not say how many batches there are."""

    num_batches = None

    def __getitem__(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        return super().__getitem__(number % 5)


def test_a_pydataset_without_a_length(strategy_of: Any) -> None:
    model, ours = twins(plain, strategy_of("one_device", 1))
    options = {"epochs": 2, "steps_per_epoch": 3, "shuffle": False, "verbose": 0}
    theirs = model.fit(Endless(), **options).history
    assert_same_logs(mk.fit(ours, Endless(), **options).history, theirs, rtol=2e-5)


def test_a_pydataset_keeps_its_length_during_a_fit(strategy_of: Any) -> None:
    class Longer(Batches):
        def __len__(self) -> int:
            return 2 + self.ended

    _, ours = twins(plain, strategy_of("one_device", 1))
    with pytest.raises(DataError, match="Longer had 3 batches when the fit began, and has 4 in epoch 1"):
        mk.fit(ours, Longer(), epochs=3, verbose=0)


class Grows(Batches):
    """Its targets tell how often Keras has called its hooks."""

    begun = 0

    def __getitem__(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        x, y = super().__getitem__(number)
        return x, y + self.ended + 10.0 * self.begun

    def on_epoch_begin(self) -> None:
        self.begun += 1


def test_a_pydataset_that_changes_with_the_epochs(strategy_of: Any) -> None:
    model, ours = twins(plain, strategy_of("one_device", 1))
    theirs = model.fit(Grows(), epochs=3, verbose=0, shuffle=False).history
    assert mk.fit(ours, Grows(), epochs=3, verbose=0, shuffle=False).history["loss"] == pytest.approx(theirs["loss"])


@pytest.mark.slow
def test_a_further_call_goes_on_and_compiles_nothing_anew(strategy_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    strategy = strategy_of("mirrored", 2)
    model, ours = twins(plain, strategy)
    for one in (quietly(model.fit), quietly(mk.fit, ours)):
        one(X, Y, batch_size=35, shuffle=False)
    made: list[Any] = []
    create = mk.train.Loop.__init__
    monkeypatch.setattr(
        mk.train.Loop, "__init__", lambda *args, **options: (made.append(1), create(*args, **options))[1]
    )
    ours.layers[0].kernel.assign(ours.layers[0].kernel * 2)
    model.layers[0].kernel.assign(model.layers[0].kernel * 2)
    for one in (quietly(model.fit), quietly(mk.fit, ours)):
        one(X, Y, batch_size=35, shuffle=False)
    assert not made
    assert largest_difference(ours.get_weights(), model.get_weights()) < 2e-5
    for one in (model, ours):  # compiled again, with a frozen layer
        one.layers[0].trainable = False
        with strategy.scope() if one is ours else tf.distribute.get_strategy().scope():
            one.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mse", "mae"])
    frozen = ours.layers[0].kernel.numpy()
    expected = model.fit(X, Y, batch_size=35, shuffle=False, verbose=0).history
    assert_same_logs(mk.fit(ours, X, Y, batch_size=35, shuffle=False, verbose=0).history, expected, rtol=2e-5)
    np.testing.assert_array_equal(ours.layers[0].kernel, frozen)
    assert largest_difference(ours.get_weights(), model.get_weights()) < 2e-5
    assert len(made) == 1
    mk.fit(ours, X, Y, batch_size=35, verbose=0, clip_norm=1.0)
    assert len(made) == 2


@pytest.mark.slow
def test_a_further_call_keeps_the_loss_scale_that_keras_added(strategy_of: Any) -> None:
    with with_policy("mixed_float16"), strategy_of("mirrored", 2).scope():
        model = plain()
    losses = [mk.fit(model, X, Y, batch_size=35, verbose=0, shuffle=False).history["loss"][0] for _ in range(2)]
    assert losses[1] < losses[0]
    assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    assert mk.fit(model, X, Y, batch_size=35, verbose=0, shuffle=False, clip_norm=1.0).history["loss"][0] < losses[1]


def test_it_says_once_where_it_trains(
    strategy_of: Any,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, ours = twins(plain, strategy_of("mirrored", 2))
    mk.fit(ours, X, Y, verbose=2)
    mk.fit(ours, X, Y, verbose=2)
    assert capsys.readouterr().out.count("MirroredStrategy, 2 replicas on CPU:0 CPU:1") == 1
    monkeypatch.setattr("mirrorkit.devices.find", lambda kind=None: ("/device:GPU:0", "/device:GPU:1"))
    with caplog.at_level(logging.WARNING, "mirrorkit"):
        mk.fit(plain(), X, Y, verbose=2)
    assert "made in no strategy's scope" in capsys.readouterr().out
    assert "2 GPUs" in caplog.text


@pytest.mark.slow
def test_a_hook_that_only_looks_comes_once_per_call_as_the_warning_says(
    strategy_of: Any, caplog: pytest.LogCaptureFixture
) -> None:
    class Look(keras.callbacks.Callback):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.batches: list[int] = []

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.batches.append(batch)

    with strategy_of("one_device", 1).scope():
        model = plain()
    every, fifth = Look(), Look()
    mk.fit(model, X, Y, batch_size=7, callbacks=[every], verbose=0)
    assert "compile(steps_per_execution=50)" in caplog.text
    caplog.clear()
    with strategy_of("one_device", 1).scope():
        model.compile("adam", "mse", steps_per_execution=5)
    mk.fit(model, X, Y, batch_size=7, callbacks=[fifth], verbose=0)
    assert "hook" not in caplog.text
    assert (every.batches, fifth.batches) == ([*range(10)], [4, 9])


def test_a_generator_gives_each_validation_its_next_batches(strategy_of: Any) -> None:
    """And what was read ahead for one is not lost to the next."""
    with strategy_of("mirrored", 2).scope():
        model = plain()
    model.optimizer.learning_rate = 0.0
    fitted = mk.fit(model, X, Y, epochs=4, verbose=0, validation_data=generator(), validation_steps=2)
    parts = [[(number + 2 * epoch) % 5 for number in range(2)] for epoch in range(4)]
    errors = np.reshape((np.asarray(model(X)) - Y) ** 2, [5, -1])
    expected = [np.mean(errors[part]) for part in parts]
    np.testing.assert_allclose(fitted.history["val_loss"], expected, rtol=2e-5)


class OwnStep(keras.Model):
    """Trains as Keras does, by a step of its own; several inputs reach it as Keras packs them."""

    def train_step(self, data: Any) -> Any:
        return super().train_step(data)


@pytest.mark.parametrize("kind", [list, tuple])
def test_predict_of_several_inputs_by_a_model_with_its_own_step(kind: Any, strategy_of: Any) -> None:
    with strategy_of("mirrored", 2).scope():
        inputs = [keras.Input((3,)), keras.Input((2,))]
        model = OwnStep(inputs, keras.layers.Dense(1)(keras.layers.Concatenate()(inputs)))
        model.compile("sgd", "mse")
    x = kind([X.astype("float32"), Y])
    np.testing.assert_allclose(mk.predict(model, x), model(list(x)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda model: mk.fit(model, X, Y[:5]), DataError, r"\[5, 70\]"),
        (lambda model: mk.fit(model, dataset(), Y), StepError, "^y can be given"),
        (lambda model: mk.fit(model, dataset(), batch_size=3), StepError, "^batch_size can be given"),
        (lambda model: mk.fit(model, X, Y, batch_size=-4), StepError, "^batch_size"),
        (lambda model: mk.fit(model, dataset(), shuffle=True), StepError, "shuffle"),
        (lambda model: mk.fit(model, dataset(), validation_split=0.1), StepError, "validation_split"),
        (lambda model: mk.fit(model, X, Y, validation_split=0.999), StepError, "of 70 examples"),
        (lambda model: mk.fit(model), StepError, "NoneType"),
        (lambda model: mk.fit(model, [1.0, 2.0], [1.0, 2.0]), StepError, "np.asarray"),
        (lambda model: mk.fit(model, tf.ragged.constant([[1.0], [2.0, 3.0]]), Y[:2]), DataError, "RaggedTensor"),
        (lambda model: mk.fit(keras.Sequential([keras.layers.Dense(1)]), X, Y), StepError, "not compiled"),
        (lambda model: mk.fit(model, X, Y, workers=2), TypeError, "workers"),
        (lambda model: mk.predict(model, X, callbacks=[keras.callbacks.Callback()]), StepError, "callbacks"),
    ],
)
def test_what_is_refused(pair: tuple[Any, Any], call: Callable[[Any], Any], error: Any, match: str) -> None:
    with pytest.raises(error, match=match):
        call(pair[1])


@pytest.mark.slow
def test_an_exported_model_is_compiled(strategy_of: Any, tmp_path: Path) -> None:
    """It evaluates, and trains on with the optimizer's state, as the one that was exported."""
    with strategy_of("mirrored", 2).scope():
        model = plain()
    mk.fit(model, X, Y, epochs=2, verbose=0)
    mk.train.export(model, tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(loaded.evaluate(X, Y, verbose=0), mk.evaluate(model, X, Y, verbose=0), rtol=2e-5)
    loaded.fit(X, Y, shuffle=False, verbose=0)
    mk.fit(model, X, Y, shuffle=False, verbose=0)
    assert largest_difference(loaded.get_weights(), model.get_weights()) < 2e-5


def test_a_loss_that_is_not_registered_is_left_out_of_an_exported_model(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def own(y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
        return keras.losses.mse(y_true, y_pred)

    model = plain()
    model.compile("sgd", own)
    mk.train.export(model, tmp_path / "model.keras")
    assert "'own'" in caplog.text
    assert not keras.saving.load_model(tmp_path / "model.keras").compiled


class Asks(keras.layers.Layer):
    """Rounds to what the policy of the program says."""

    def call(self, x: Any) -> Any:
        return keras.ops.cast(keras.ops.cast(x, keras.config.dtype_policy().compute_dtype), "float32")


@pytest.mark.parametrize("where", [("one_device", 1), ("mirrored", 2)], ids=str)
def test_code_that_asks_for_the_dtype_policy_gets_it(where: Any, strategy_of: Any, tmp_path: Path) -> None:
    """Keras keeps it by thread, and replicas and traces have threads of their own."""

    def net() -> Any:
        parts = keras.layers.Dense(3, dtype="float32"), Asks(dtype="float32"), keras.layers.Dense(1, dtype="float32")
        model = keras.Sequential([keras.Input((X.shape[1],)), *parts])
        model.compile("sgd", "mse")
        return model

    y = X[:, :1]
    with with_policy("mixed_bfloat16"):
        model, ours = twins(net, strategy_of(*where))
        np.testing.assert_allclose(mk.predict(ours, X), model.predict(X, verbose=0), atol=1e-6)
        losses = mk.fit(ours, X, y, batch_size=len(X), verbose=0).history["loss"]
        np.testing.assert_allclose(losses, model.fit(X, y, batch_size=len(X), verbose=0).history["loss"], rtol=1e-6)
        np.testing.assert_allclose(mk.evaluate(ours, X, y, verbose=0), model.evaluate(X, y, verbose=0), rtol=1e-6)
        mk.train.export(ours, tmp_path / "exported")
        loaded = tf.saved_model.load(tmp_path / "exported")  # kept, or its variables would be deleted
        np.testing.assert_allclose(loaded.serve(X), mk.predict(ours, X), atol=1e-6)
