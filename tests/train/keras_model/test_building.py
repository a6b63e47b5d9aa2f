"""Models that are not built train as in Keras's `fit`, which builds them from its first batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.errors import StepError

L = keras.layers


class Net(keras.Model):  # type: ignore[name-defined, misc]
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = L.Dense(3), L.LayerNormalization(), L.Dense(1)
        self.unused = L.Dense(2)  # no call reaches it

    def call(self, x: Any, training: bool = False) -> Any:
        return self.last(self.norm(self.first(x), training=training))


class Forgets(Net):
    def build(self, shape: Any) -> None:
        self.first.build(shape)


class Nested(keras.Model):  # type: ignore[name-defined, misc]
    def __init__(self) -> None:
        super().__init__()
        self.inner = keras.Sequential([L.Dense(3), keras.Sequential([L.Dropout(0.0), L.Dense(2)])])
        self.last = L.Dense(1)

    def call(self, x: Any) -> Any:
        return self.last(self.inner(x))


class Two(keras.Model):  # type: ignore[name-defined, misc]
    def __init__(self) -> None:
        super().__init__()
        self.same = L.Dense(1)

    def call(self, x: Any) -> Any:
        return self.same(x["a"]) - self.same(x["b"])


class InTraining(Net):
    """A head that is called in training alone."""

    def __init__(self) -> None:
        super().__init__()
        self.head = L.Dense(2, use_bias=False)

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            self.add_loss(keras.ops.mean(self.head(self.first(x)) ** 2))
        return super().call(x, training=training)


def said_to_be_built() -> Any:
    net = Net()
    net.build((None, 4))  # creates nothing, and says that it did
    return net


NETS: dict[str, Callable[[], Any]] = {
    "sequential": lambda: keras.Sequential([L.Dense(3), L.LayerNormalization(), L.Dense(1)]),
    "subclassed": Net,
    "build, to no effect": said_to_be_built,
    "a build that forgets": Forgets,
    "nested": Nested,
    "dict": Two,
    "a head of the training": InTraining,
}


def data(numbers: Any, net: str = "", batch: int = 12) -> tf.data.Dataset:
    x, y = numbers
    inputs = {"a": x, "b": x[::-1].copy()} if net == "dict" else x
    return tf.data.Dataset.from_tensor_slices((inputs, y)).batch(batch)


def by_keras(net: str, numbers: Any, **options: Any) -> tuple[Any, dict[str, Any]]:
    """The model that Keras builds and trains, and its history."""
    keras.utils.set_random_seed(0)
    model = NETS[net]()
    model.compile(keras.optimizers.SGD(0.01), "mse")
    return model, model.fit(data(numbers, net), verbose=0, **options).history


def first_weights(net: str, numbers: Any) -> list[Any]:
    """Those that Keras creates in its first call."""
    keras.utils.set_random_seed(0)
    model = NETS[net]()
    model(numbers[0])
    return list(model.get_weights())


FAST = {"build, to no effect"}


@pytest.mark.filterwarnings("ignore:`build")
@pytest.mark.parametrize("net", [pytest.param(net, marks=[pytest.mark.slow] * (net not in FAST)) for net in NETS])
def test_the_weights_and_the_losses_are_those_of_keras(net: str, make_loop: Any, numbers: Any) -> None:
    loop = make_loop(("mirrored", 2), NETS[net], lambda: keras.optimizers.SGD(0.01))
    options = {"validation_data": data(numbers, net, batch=20)}
    history = loop.fit(data(numbers, net), verbose=0, **options).history
    model, expected = by_keras(net, numbers, **options)
    assert history.keys() == expected.keys()
    for name, values in history.items():
        np.testing.assert_allclose(values, expected[name], rtol=1e-5, err_msg=name)
    for mine, theirs in zip(loop.step.model.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=2e-6)
    for variable in loop.step.variables:
        assert loop.strategy.extended.variable_created_in_scope(getattr(variable, "value", variable))


@pytest.mark.parametrize(
    "first", ["predict", *(pytest.param(name, marks=pytest.mark.slow) for name in ("evaluate", "warm_up", "traced"))]
)
def test_whatever_is_called_first_builds(first: str, make_loop: Any, numbers: Any, recipe: Any) -> None:
    loop = make_loop(("mirrored", 2), NETS["sequential"])
    if first == "predict":
        loop.predict(tf.data.Dataset.from_tensor_slices(numbers[0]).batch(12))
    else:
        getattr(loop, first)(recipe)
    np.testing.assert_equal(loop.step.model.get_weights(), first_weights("sequential", numbers))
    assert loop.step.strategy is loop.strategy


def test_parts_of_a_loss_function(strategy_of: Any, numbers: Any) -> None:
    """One of two is frozen, and what is not built is neither trained nor forgotten."""

    def fitted(*, built: bool) -> Any:
        strategy = strategy_of("mirrored", 2)
        keras.utils.set_random_seed(0)
        with strategy.scope():
            parts = [keras.Sequential([L.Dense(3), L.Dropout(0.2)]), Nested()]
            optimizer = keras.optimizers.SGD(0.1)
            if built:
                parts[1](parts[0](numbers[0]))

        def loss_fn(batch: Any, training: bool) -> Any:
            return tf.reduce_mean((parts[1](parts[0](batch[0], training=training)) - batch[1]) ** 2, -1)

        step = mk.train.Step.from_loss(parts, optimizer, loss_fn, frozen=parts[0])
        history = mk.train.Loop(strategy, step).fit(data(numbers), verbose=0).history
        return history, [weight for part in parts for weight in part.get_weights()], step

    (history, weights, step), (expected, others, _) = fitted(built=False), fitted(built=True)
    assert history == expected
    np.testing.assert_equal(weights, others)
    assert len(step.model.trainable_variables) == 6


def test_without_data_the_message_says_what_helps(strategy_of: Any, numbers: Any, tmp_path: Path) -> None:
    strategy = strategy_of("mirrored", 2)
    with strategy.scope():
        model, optimizer = NETS["sequential"](), keras.optimizers.SGD(0.1)
    step = mk.train.Step(model, optimizer, loss="mse")
    cure = r"is not built.*warm_up.*model\(x\)"
    with pytest.raises(StepError, match=cure):
        step.build(strategy)
    with pytest.raises(StepError, match=cure):
        mk.train.Loop(strategy, step).restore(tmp_path)
    with pytest.raises(StepError, match=r"step\.build\(strategy\)"):
        mk.checks.find_non_finite(step, numbers)
    with strategy.scope():
        model(numbers[0][:12])
    step.build(strategy)
    batch = tf.nest.map_structure(tf.constant, numbers)
    logs = step.update(strategy, strategy.run(tf.function(step.compute), args=(batch,)))
    assert float(logs["loss"]) > 0


def test_a_model_of_another_scope(make_loop: Any, numbers: Any) -> None:
    model = keras.Sequential([L.Dense(1)], name="outside")
    with pytest.raises(StepError, match="'outside' was not created in the scope"):
        make_loop(("mirrored", 2), lambda: model).fit(data(numbers))


@pytest.mark.parametrize(
    ("net", "spec", "match"),
    [
        ("sequential", tf.TensorSpec([None, None]), r"\[None, None\], failed with ValueError"),
        ("dict", tf.TensorSpec([None, 4]), r"'two', called on float32 \[None, 4\]"),
        ("sequential", tf.TensorSpec(None), "does not tell the rank"),
    ],
    ids=["unknown sizes", "other inputs", "unknown rank"],
)
def test_data_that_does_not_build_it(net: str, spec: Any, match: str, make_loop: Any) -> None:
    targets = tf.TensorSpec([None, 1])
    batches = tf.data.Dataset.from_generator(lambda: iter([]), output_signature=(spec, targets))
    with pytest.raises(StepError, match=match) as raised:
        make_loop(("mirrored", 2), NETS[net]).fit(batches)
    assert "_Call" not in str(raised.value)
