"""Plain functions for the tests of training."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

import mirrorkit as mk
from mirrorkit._keras import keras

# Two replicas are what most other tests take, and the table of equivalence has one to four of each.
KINDS = [("one_device", 1), ("mirrored", 3), ("central_storage", 2)]
THREE = ("mirrored", 3)  # of a batch of four, one replica has nothing


def plain_dataset(*parts: Any, batch: int) -> tf.data.Dataset:
    """The user's own dataset of global batches, made without mirrorkit."""
    return tf.data.Dataset.from_tensor_slices(tuple(parts)).batch(batch)


def largest_difference(one: Sequence[Any], other: Sequence[Any]) -> float:
    """The largest absolute difference between two lists of arrays."""
    assert len(one) == len(other)
    assert all(np.shape(a) == np.shape(b) for a, b in zip(one, other, strict=True))
    # NumPy's maximum, as Python's would pass over a NaN
    return float(np.max([np.max(np.abs(np.asarray(a, "float64") - b)) for a, b in zip(one, other, strict=True)]))


def keras_twin(net: Any, loop: Any) -> Any:
    """The same net with the loop's present weights, outside of every strategy and without mirrorkit."""
    model = net()
    model.set_weights(loop.step.model.get_weights())
    return model


def assert_same_logs(found: Mapping[str, Any], expected: Mapping[str, Any], rtol: float, atol: float = 0.0) -> None:
    """The same names, and values within rounding."""
    assert set(found) == set(expected)
    for name, values in expected.items():
        np.testing.assert_allclose(np.array(found[name]), np.array(values), rtol=rtol, atol=atol, err_msg=name)


def fit_both(
    make_loop: Any,
    net: Any,
    data: Any,
    *,
    where: tuple[str, int] = ("mirrored", 2),
    optimizer: Any = lambda: keras.optimizers.SGD(0.1),
    fit: Mapping[str, Any] | None = None,
    rtol: float = 2e-5,
    atol: float = 0.0,
    apart: float = 1e-5,
    **compiled: Any,
) -> tuple[Any, Any, Any]:
    """Train two epochs with a loop, and with Keras's own fit on one device: histories and weights agree.

    `compiled` are arguments of `Step` and of `compile`.
    Returns the loop's history, the loop and Keras's model.
    """
    compiled = {"loss": "mse", **compiled}
    loop = make_loop(where, net, optimizer, **compiled)
    model = keras_twin(net, loop)
    model.compile(optimizer(), **compiled)
    given = {"epochs": 2, "verbose": 0, **(fit or {})}
    expected, found = (one.fit(data, **given).history for one in (model, loop))
    assert_same_logs(found, expected, rtol, atol)
    assert largest_difference(loop.step.model.get_weights(), model.get_weights()) < apart
    return found, loop, model


def fit_compiled(
    strategy: tf.distribute.Strategy, make: Callable[[], Any], data: Any, *, apart: float = 1e-5, **fit: Any
) -> tuple[Any, Any]:
    """Train the compiled model that `make` returns with Keras's own fit, and with a loop: histories and weights agree.

    Returns the loop and Keras's model.
    """
    keras.utils.set_random_seed(0)
    model = make()
    given = {"epochs": 2, "verbose": 0, **fit}
    expected = model.fit(data, **given).history
    keras.utils.set_random_seed(0)
    with strategy.scope():
        ours = make()
    loop = mk.train.Loop(strategy, mk.train.Step.from_compiled(ours))
    assert_same_logs(loop.fit(data, **given).history, expected, rtol=2e-5, atol=1e-6)
    assert largest_difference(ours.get_weights(), model.get_weights()) < apart
    return loop, model


class Interrupted(Exception):
    """What breaks a run off in these tests."""


def interrupt() -> None:
    """Break the run off."""
    raise Interrupted


def send_sigterm() -> None:
    """As a scheduler does."""
    os.kill(os.getpid(), signal.SIGTERM)


class At(keras.callbacks.Callback):  # type: ignore[name-defined, misc]
    """Acts once, in the hook of this name, when the run has done so many steps."""

    def __init__(self, hook: str, steps: int, act: Callable[[], Any] = interrupt) -> None:
        super().__init__()
        self.waits = True

        def strike(*args: Any, **options: Any) -> None:
            if self.waits and self.loop.position.steps >= steps:
                self.waits = False
                act()

        setattr(self, hook, strike)

    def set_loop(self, loop: Any) -> None:
        self.loop = loop

    def get_state(self) -> None:
        """Nothing to save."""


def sequential(shape: tuple[int | None, ...], *layers: Any) -> Any:
    """A Sequential model over inputs of this shape."""
    return keras.Sequential([keras.Input(shape), *layers])


class Keeps(keras.layers.Layer):  # type: ignore[name-defined, misc]
    """Keeps `new(kept, inputs)`, in training or in any pass, and passes its inputs on."""

    def __init__(self, new: Any, *, first: float = 0.0, always: bool = False, name: str = "keeps", **options: Any):
        super().__init__(name=name)
        self.new, self.first, self.always, self.options = new, first, always, {"shape": (), **options}

    def build(self, shape: Any) -> None:
        start = keras.initializers.Constant(self.first) if self.first else "zeros"
        self.kept = self.add_weight(initializer=start, trainable=False, name="kept", **self.options)

    def call(self, x: Any, training: bool = False) -> Any:
        if training or self.always:
            self.kept.assign(self.new(self.kept, x))
        return x


def line_net() -> Any:
    """A linear model of four inputs."""
    return sequential((4,), keras.layers.Dense(1, name="line"))


class Twice(keras.Model):  # type: ignore[name-defined, misc]
    """Updates its weights twice with each batch."""

    def train_step(self, data: Any) -> Any:
        x, y = data
        for _ in range(2):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self(x, training=True) - y) ** 2)
            self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}


def tanh_net() -> Any:
    """A smooth net of four inputs, with a hidden layer."""
    return sequential((4,), keras.layers.Dense(5, activation="tanh"), keras.layers.Dense(1))


def adam() -> Any:
    """An optimizer with slots, at a rate for small nets."""
    return keras.optimizers.Adam(0.01)


def classifier(classes: int, activation: str) -> Any:
    """A linear classifier of four inputs."""
    return sequential((4,), keras.layers.Dense(classes, activation=activation))


def values_of(loop: Any) -> list[np.ndarray]:
    """The values of all variables of the loop's step."""
    return [variable.value.numpy() for variable in loop.step.variables]


def set_values(loop: Any, values: Sequence[np.ndarray]) -> None:
    """Put back what `values_of` returned."""
    for variable, value in zip(loop.step.variables, values, strict=True):
        variable.assign(value)


def as_new(loop: Any) -> Any:
    """The same loop as it was when this was first called for it."""
    set_values(loop, vars(loop).setdefault("first_values_of_the_tests", values_of(loop)))
    loop.position = mk.train.Position()
    return loop


def linear(weights: Sequence[np.ndarray], x: np.ndarray) -> np.ndarray:
    """What `line_net` with these weights predicts, in float64."""
    return x.astype("float64") @ weights[0] + weights[1]
