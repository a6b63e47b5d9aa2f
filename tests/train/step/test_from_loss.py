"""`Step.from_loss`: what it takes, refuses and predicts. What it trains: the corpus, test_whole_batch.py."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from step_helpers import numbers_of
from training_helpers import largest_difference, plain_dataset, sequential

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.errors import StepError

L = keras.layers

Parts = dict[str, Any]
LossFn = Callable[..., Any]


class Distillation:
    """A frozen teacher and its student; a batch is a dict."""

    def parts(self) -> Parts:
        teacher = sequential((6,), L.Dense(3, name="taught"))
        teacher.trainable = False
        return {"student": sequential((6,), L.Dense(4, "tanh"), L.Dense(3)), "teacher": teacher}

    def loss_fn(self, parts: Parts) -> LossFn:
        return lambda batch: tf.reduce_mean(
            (parts["student"](batch["image"]) - parts["teacher"](batch["image"])) ** 2, -1
        )

    def data(self, x: Any) -> Any:
        return {"image": x}


@pytest.fixture(scope="module")
def x() -> np.ndarray:
    """Inputs [41, 6]."""
    x = np.random.default_rng(0).normal(size=(41, 6)).astype("float32")
    x.setflags(write=False)
    return x


@pytest.fixture
def make(strategy_of: Any) -> Callable[..., tuple[mk.train.Loop, Parts]]:
    """`make(where, case, predict=of the parts, **options)`: a loop and its parts, with weights of the same seed."""

    def make(where: tuple[str, int], case: Any, *, predict: Any = None, **options: Any) -> tuple[mk.train.Loop, Parts]:
        strategy = strategy_of(*where)
        keras.utils.set_random_seed(0)
        with strategy.scope():
            parts, optimizer = case.parts(), keras.optimizers.Adam(0.01)
        predict = predict and predict(parts)
        step = mk.train.Step.from_loss(parts, optimizer, case.loss_fn(parts), predict=predict, **options)
        return mk.train.Loop(strategy, step, steps_per_call=3), parts

    return make


def _rows(data: Any) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(data).batch(20)


def test_predict(make: Any, x: np.ndarray) -> None:
    """By default the first of the models on `x`; else a function of the batch."""
    loop, parts = make(("mirrored", 2), Squared())
    rounding = {"rtol": 1e-5, "atol": 1e-6}  # near 0 that of the summands, which are around 1
    np.testing.assert_allclose(loop.predict(_rows(x)), parts["net"](x), **rounding)
    assert loop.predict(plain_dataset(x, np.arange(41), batch=20)).shape == (41, 3)

    data = _rows(Distillation().data(x))
    loop, parts = make(("mirrored", 2), Distillation())

    def student_of(parts: Parts) -> Callable[[Any], Any]:
        return lambda batch: {"logits": parts["student"](batch["image"])}

    loop, parts = make(("mirrored", 2), Distillation(), predict=student_of)
    np.testing.assert_allclose(loop.predict(data)["logits"], parts["student"](x), **rounding)


def test_one_model_is_what_callbacks_and_files_hold(strategy_of: Any, x: np.ndarray, tmp_path: Any) -> None:
    strategy = strategy_of("mirrored", 2)
    with strategy.scope():
        net, optimizer = sequential((6,), L.Dense(2)), keras.optimizers.SGD(0.1)
    step = mk.train.Step.from_loss(net, optimizer, lambda batch: tf.reduce_sum(net(batch) ** 2, -1))
    assert step.model is net
    saver = keras.callbacks.ModelCheckpoint(tmp_path / "whole.keras")
    mk.train.Loop(strategy, step).fit(_rows(x), verbose=0, callbacks=[saver])
    assert net.optimizer is optimizer
    np.testing.assert_allclose(keras.saving.load_model(tmp_path / "whole.keras")(x), net(x), rtol=1e-6)


def test_several_models_do_not_fit_into_one_file(make: Any, x: np.ndarray, tmp_path: Any) -> None:
    loop, parts = make(("mirrored", 2), Distillation())
    words = r"holds one model, and the step has several parts: 'sequential_1', .*save_weights_only=True.*export\(model"
    with pytest.raises(StepError, match="A .keras file " + words):
        loop.fit(_rows(Distillation().data(x)), callbacks=[keras.callbacks.ModelCheckpoint(tmp_path / "all.keras")])
    with pytest.raises(StepError, match="An exported file " + words):
        mk.train.export(loop, tmp_path / "all.keras")
    mk.train.export(parts["student"], tmp_path / "student.keras")
    assert keras.saving.load_model(tmp_path / "student.keras").count_params() == parts["student"].count_params()


class Squared:
    """A net and the sum of squares of its outputs, [rows]; `wrong` makes of (batch, parts, values) what is returned."""

    def __init__(self, wrong: Any = lambda batch, parts, values: values) -> None:
        self._wrong = wrong

    def parts(self) -> Parts:
        return {"net": sequential((6,), L.Dense(3))}

    def loss_fn(self, parts: Parts) -> LossFn:
        return lambda batch: self._wrong(batch, parts, tf.reduce_sum(parts["net"](batch) ** 2, -1))


OUTSIDE: dict[str, Any] = {}  # what a loss function uses and the step is not given


FORBIDDEN: dict[str, tuple[Any, str]] = {
    "scalar": (lambda b, p, v: tf.reduce_mean(v), r"shape \(\) for 'loss' of \d+ rows"),
    "matrix": (lambda b, p, v: p["net"](b) ** 2, r"shape \(\d+, 3\) for 'loss'.*axis=-1"),
    "of a size of the net": (lambda b, p, v: tf.tile(tf.reduce_mean(p["net"](b), 0), [5])[:13], r"\(13,\) for 'loss'"),
    "two for each row": (lambda b, p, v: tf.concat([v, v], 0), r"\(2018,\) for 'loss'"),
    "some": (lambda b, p, v: tf.boolean_mask(v, v > 1), r"\(None,\) for 'loss'.*boolean_mask"),
    "scalar metric": (lambda b, p, v: {"loss": v, "mean": tf.reduce_mean(v)}, r"\(\) for 'mean'"),
    "no loss": (lambda b, p, v: {"error": v}, r"\['error'\]"),
    "tuple": (lambda b, p, v: (v, {"error": v}), "returned tuple for 'loss'"),
    "a model": (lambda b, p, v: v + OUTSIDE["net"](b)[:, 0], "kernel.*Step.from_loss takes"),
    "a seed": (lambda b, p, v: v + keras.random.normal([], seed=OUTSIDE["seed"]), "seed_generator_state', which"),
    "a metric": (lambda b, p, v: OUTSIDE["mean"].update_state(v) or v, "'mean/total', which"),
}


@pytest.mark.parametrize(("wrong", "match"), FORBIDDEN.values(), ids=FORBIDDEN)
def test_what_a_loss_function_may_not_do(wrong: Any, match: str, make: Any, x: np.ndarray) -> None:
    OUTSIDE.update(
        net=sequential((6,), L.Dense(3)), seed=keras.random.SeedGenerator(1), mean=keras.metrics.Mean("mean")
    )
    loop, _ = make(("mirrored", 2), Squared(wrong))
    with pytest.raises(StepError, match=match):
        loop.fit(_rows(x))


def _with_noise(batch: Any, parts: Parts, values: Any) -> Any:
    return (values + keras.random.normal(tf.shape(values), stddev=0.1, seed=parts["seed"])) / _count(batch)


def _count(batch: Any) -> Any:
    return tf.cast(tf.shape(batch)[0], "float32")


class WithSeed(Squared):
    """And a generator of random numbers."""

    def parts(self) -> Parts:
        return {**super().parts(), "seed": keras.random.SeedGenerator(1)}


OVER_ROWS: dict[str, tuple[Any, str]] = {
    "rank": (lambda b, p, v: {"loss": v, "rank": v - tf.reduce_max(v)}, "'rank'"),
    "not floats": (lambda b, p, v: {"loss": v, "top": tf.equal(v, tf.reduce_max(v))}, "'top'"),
    "contrastive": (lambda b, p, v: tf.reduce_logsumexp(p["net"](b) @ tf.transpose(p["net"](b)), -1), "'loss'"),
    "divided, with noise": (_with_noise, "'loss'.* or on how many"),
}


@pytest.mark.parametrize(("wrong", "match"), OVER_ROWS.values(), ids=OVER_ROWS)
def test_a_loss_over_the_whole_batch(wrong: Any, match: str, make: Any, x: np.ndarray) -> None:
    loop, _ = make(("mirrored", 2), WithSeed(wrong))
    with pytest.raises(StepError, match=match + r".*unchecked=\('rows',\)"):
        loop.fit(_rows(x), verbose=0)


def test_it_is_refused_for_parts_of_an_update_too_unless_it_is_named(make: Any, x: np.ndarray) -> None:
    loop, _ = make(("one_device", 1), WithSeed(_with_noise), accumulate=2)
    with pytest.raises(StepError, match=r"'loss' for an example depends on .*, or on how many"):
        loop.fit(_rows(x), verbose=0)
    loop, _ = make(("mirrored", 2), WithSeed(_with_noise), unchecked="rows")
    loop.fit(_rows(x), verbose=0)


def test_class_weight(make: Any, x: np.ndarray) -> None:
    loop, _ = make(("mirrored", 2), Squared())
    with pytest.raises(StepError, match=r"class_weight weighs a loss by its targets.*Multiply the values in loss_fn"):
        loop.fit(plain_dataset(x, np.arange(41) % 2, batch=20), class_weight={0: 1.0, 1: 2.0})


TAKES: dict[str, tuple[Any, Any, dict[str, Any], str]] = {
    "metrics": (lambda net: net, lambda b: b, {"metrics": ["mae"]}, "was given metrics"),
    "a variable": (lambda net: [net, keras.Variable(1.0)], lambda b: b, {}, r"found <Variable.*add_weight"),
    "no model": (lambda net: [keras.random.SeedGenerator()], lambda b: b, {}, "takes as its models"),
    "another is frozen": (lambda net: net, lambda b: b, {"frozen": [L.Dense(1)]}, "frozen must be one"),
    "a class": (lambda net: L.Dense, lambda b: b, {}, "takes as its models"),
}


@pytest.mark.parametrize(("models", "loss_fn", "options", "match"), TAKES.values(), ids=TAKES)
def test_what_from_loss_takes(models: Any, loss_fn: Any, options: Any, match: str) -> None:
    net = sequential((6,), L.Dense(2))
    with pytest.raises(StepError, match=match):
        mk.train.Step.from_loss(models(net), keras.optimizers.SGD(), loss_fn, **options)


class Pair(keras.Model):  # type: ignore[name-defined, misc]
    """Two models, and no call of its own, as in many a script of a VAE."""

    def __init__(self, first: Any, second: Any) -> None:
        super().__init__(name="pair")
        self.first, self.second = first, second


@pytest.mark.cannot_compare
def test_a_model_whose_parts_alone_are_called(strategy_of: Any, x: np.ndarray, tmp_path: Any) -> None:
    strategy = strategy_of("mirrored", 2)
    with strategy.scope():
        pair = Pair(sequential((6,), L.Dense(2), L.Dropout(0.5)), sequential((2,), L.Dense(6)))
        optimizer = keras.optimizers.SGD(0.1)

    def loss_fn(batch: Any) -> Any:
        return tf.reduce_mean((pair.second(pair.first(batch)) - batch) ** 2, -1)

    assert not pair.built
    loop = mk.train.Loop(strategy, mk.train.Step.from_loss(pair, optimizer, loss_fn))
    saver = keras.callbacks.ModelCheckpoint(tmp_path / "pair.weights.h5", save_weights_only=True)
    loop.fit(_rows(x), verbose=0, callbacks=[saver])
    trained = numbers_of(pair.variables)
    pair.first.set_weights([np.zeros_like(weight) for weight in pair.first.get_weights()])
    pair.load_weights(tmp_path / "pair.weights.h5")
    assert largest_difference(trained, numbers_of(pair.variables)) == 0
    with pytest.raises(NotImplementedError):
        loop.predict(_rows(x))


@pytest.mark.filterwarnings("ignore:`build")
@pytest.mark.parametrize(
    ("net", "match"),
    [
        (lambda: sequential((6,), L.Dense(2)), "Set trainable = True"),
        (lambda: keras.Sequential([L.Dense(2)], name="later"), "'later' is not built.*call it once on a batch"),
        (lambda: Pair(sequential((6,), L.Dense(2)), keras.Sequential([L.Dense(2)])), "'pair' is not built"),
        (lambda: _built(Pair(L.Dense(2), L.Dense(2))), "'pair' is not built"),
    ],
    ids=["frozen", "not built", "half of it built", "said to be built"],
)
def test_parts_that_cannot_be_trained(net: Any, match: str, strategy_of: Any) -> None:
    strategy = strategy_of("mirrored", 2)
    with strategy.scope():
        made, optimizer = net(), keras.optimizers.SGD()
    made.trainable = False
    step = mk.train.Step.from_loss({"net": made}, optimizer, lambda batch: batch)
    with pytest.raises(StepError, match=match):
        step.build(strategy)


def _built(model: Any) -> Any:
    model.build((None, 6))
    return model


def test_a_generator_that_a_layer_has_too(strategy_of: Any, x: np.ndarray) -> None:
    """Its state is one variable of the step, not two."""
    strategy = strategy_of("mirrored", 2)
    with strategy.scope():
        drop, optimizer = L.Dropout(0.5), keras.optimizers.SGD(0.1)
        net = sequential((6,), drop, L.Dense(2))
    models = [net, drop.seed_generator]
    step = mk.train.Step.from_loss(models, optimizer, lambda batch: tf.reduce_sum(net(batch) ** 2, -1))
    mk.train.Loop(strategy, step).fit(_rows(x), verbose=0)
    names = [variable.path for variable in step.variables]
    assert len(set(names)) == len(names)
    assert step.model is net


# --- several models: what callbacks and Keras's own ways meet


ONES = mk.data.batches(mk.data.arrays(np.ones((16, 3), "float32")), global_batch_size=8)


def named(name: str) -> Any:
    return keras.Sequential([keras.Input((3,)), L.Dense(1)], name=name)


def two(strategy: Any) -> mk.train.Step:
    with strategy.scope():
        one, other, optimizer = named("one"), named("other"), keras.optimizers.SGD(0.1)
    other.trainable = False
    return mk.train.Step.from_loss(
        [one, other], optimizer, lambda batch: tf.reduce_sum((one(batch[0]) - other(batch[0])) ** 2, 1)
    )


def test_a_callback_that_takes_them_for_one(strategy_of: Any) -> None:
    class Monitor(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            _ = self.model.generator

    strategy = strategy_of("one_device", 1)
    words = "several models, 'one', 'other', .* has no 'generator'.*Pass a callback the model that it needs"
    with pytest.raises(AttributeError, match=words):
        mk.train.Loop(strategy, two(strategy)).fit(ONES, callbacks=[Monitor()], verbose=0)


def test_the_log_says_what_is_trained(strategy_of: Any, caplog: Any) -> None:
    """A teacher whose weights an old script's tape left out would be trained silently, a model without an Input too."""
    strategy = strategy_of("one_device", 1)
    with strategy.scope():
        student, teacher = keras.Sequential([L.Dense(1)], name="student"), named("teacher")
        other, optimizer = named("other"), keras.optimizers.SGD(0.1)
    other.trainable = False

    def loss_fn(batch: Any) -> Any:
        return tf.reduce_sum((student(batch[0]) - teacher(batch[0]) - other(batch[0])) ** 2, 1)

    step = mk.train.Step.from_loss([student, teacher, other], optimizer, loss_fn)
    with caplog.at_level(logging.INFO, "mirrorkit"):
        mk.train.Loop(strategy, step).fit(ONES, verbose=0)
    assert "Step.from_loss trains student, teacher." in caplog.messages


def test_a_compile_of_the_models_own(strategy_of: Any) -> None:
    """It is not called: it may take other arguments than Keras's."""

    class Distiller(keras.Sequential):
        def compile(self, optimizer: Any, alpha: float) -> None:
            raise NotImplementedError

    strategy = strategy_of("one_device", 1)
    with strategy.scope():
        model, optimizer = Distiller([keras.Input((3,)), L.Dense(1)]), keras.optimizers.SGD(0.1)
    step = mk.train.Step.from_loss(model, optimizer, lambda batch: tf.reduce_sum(model(batch[0]) ** 2, 1))
    mk.train.Loop(strategy, step).fit(ONES, verbose=0)
    assert model.optimizer is optimizer  # which callbacks look for


def test_a_model_in_place_of_a_step(strategy_of: Any) -> None:
    strategy = strategy_of("one_device", 1)
    with pytest.raises(StepError, match=r"Sequential is a Keras model, and Loop takes a step.*from_compiled"):
        mk.train.Loop(strategy, named("net"))


@pytest.mark.parametrize("when", [True, False])
def test_values_that_are_returned_in_training_alone_or_outside_of_it_are_refused(
    when: bool, strategy_of: Any, x: np.ndarray
) -> None:
    strategy = strategy_of("mirrored", 2)
    with strategy.scope():
        net, optimizer = sequential((6,), L.Dense(1)), keras.optimizers.SGD(0.1)

    def loss_fn(batch: Any, training: bool) -> Any:
        values = net(batch[0])[:, 0] ** 2
        return {"loss": values, "more": values} if training is when else {"loss": values}

    loop = mk.train.Loop(strategy, mk.train.Step.from_loss(net, optimizer, loss_fn))
    with pytest.raises(StepError, match=r"Return the same names in both"):
        loop.fit(mk.data.batches(mk.data.arrays(x), global_batch_size=8), verbose=0)
