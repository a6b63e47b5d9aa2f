"""Small nets and the layouts that put their halves on two devices."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any

import device_choice
import numpy as np
import tensorflow as tf

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.variables import copies

L = keras.layers
HALVES = {"block0": 0, "block1|head": 1}


def mlp() -> Any:
    x = keras.Input([12])
    h = L.Dense(16, activation="tanh", name="block0_dense", kernel_regularizer="l2")(x)
    h = L.Dropout(0.2, seed=1, name="block0_dropout")(h)
    h = L.Dense(16, activation="tanh", name="block1_dense")(h)
    return keras.Model(x, L.Dense(3, name="head")(h))


def cnn(*, synchronized: bool = False) -> Any:
    x = h = keras.Input([8, 8, 1])
    for i in range(2):
        h = L.Conv2D(6, 3, padding="same", use_bias=False, name=f"block{i}_conv")(h)
        h = L.BatchNormalization(synchronized=synchronized, name=f"block{i}_norm")(h)
        h = L.Activation("tanh")(h)
        h = L.AveragePooling2D(2)(h)
    return keras.Model(x, L.Dense(3, name="head")(L.Flatten()(h)))


def lstm() -> Any:
    x = h = keras.Input([5, 4])
    for i in range(2):
        h = L.LSTM(6, return_sequences=i == 0, name=f"block{i}_lstm")(h)
    return keras.Model(x, L.Dense(3, name="head")(h))


def data(net: Callable[..., Any], count: int = 61, batch: int = 16) -> mk.data.Batches:
    """Examples for a net; the last batch is smaller."""
    rng = np.random.default_rng(0)
    shape = {"mlp": (12,), "cnn": (8, 8, 1), "lstm": (5, 4)}[net.__name__]
    x = rng.normal(size=(count, *shape)).astype("float32")
    return mk.data.batches(mk.data.arrays(x, rng.integers(0, 3, count)), global_batch_size=batch, shuffle=True, seed=0)


def make_loop(
    net: Callable[..., Any],
    layout: mk.parallel.Layout | None,
    replicas: int = 1,
    *,
    optimizer: Callable[[], Any] = lambda: keras.optimizers.Adam(1e-2),
    **options: Any,
) -> mk.train.Loop:
    """Return a loop; without a layout for the same replicas, each with all on its device."""
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(0)
    with ExitStack() as scopes:
        if layout is None:
            kind = "one_device" if replicas == 1 else "mirrored"
            strategy = mk.strategy.create(kind, devices=[f"{device_choice.DEVICE}:{2 * i}" for i in range(replicas)])
        else:
            strategy = scopes.enter_context(layout).strategy()
        scopes.enter_context(strategy.scope())
        model, made = net(), optimizer()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    step = mk.train.Step(model, made, loss=loss, metrics=["accuracy"], **options)
    return mk.train.Loop(strategy, step, steps_per_call=2)


def halves(replicas: int = 1) -> mk.parallel.Layout:
    """Two devices for each replica."""
    return mk.parallel.Layout(HALVES, devices=device_choice.first(2 * replicas))


def numbers(variables: Iterable[Any]) -> list[np.ndarray]:
    """The values of all copies."""
    return [copy.numpy() for variable in variables for copy in copies(variable)]


def largest_difference(one: mk.train.Loop, other: mk.train.Loop) -> float:
    """Over all that training changed."""
    pairs = zip(numbers(one.step.variables), numbers(other.step.variables), strict=True)
    return max(float(np.max(np.abs(np.float64(a) - np.float64(b)), initial=0.0)) for a, b in pairs)


def bytes_by_device(variables: Iterable[Any]) -> dict[str, int]:
    """Bytes of all copies, by "CPU:0"."""
    found: dict[str, int] = {}
    for variable in variables:
        for copy in copies(variable):
            name = copy.device[-5:]
            found[name] = found.get(name, 0) + copy.shape.num_elements() * tf.as_dtype(copy.dtype).size
    return found
