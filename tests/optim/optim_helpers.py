"""Optimizers of Keras by name, built for variables of some shapes, and gradients for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from mirrorkit._keras import keras

Shapes = Sequence[tuple[int, ...]]

# What optimizers with one slot for each weight take; `made` makes a schedule of the word.
OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("SGD", {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    ("SGD", {"momentum": 0.9, "clipvalue": 0.1}),
    ("SGD", {"learning_rate": "schedule", "momentum": 0.5}),
    ("Adam", {"amsgrad": True}),
    ("AdamW", {"weight_decay": 0.2}),
    ("RMSprop", {"momentum": 0.9, "centered": True}),
]


def named(options: Sequence[tuple[str, dict[str, Any]]]) -> list[str]:
    """Names of tests for these optimizers."""
    return [f"{name}-{'-'.join(given)}" for name, given in options]


def variables_of(shapes: Shapes, dtypes: Sequence[str] = ("float32",)) -> list[Any]:
    """Variables of these shapes, the same numbers every time; all of them once for each dtype."""
    rng = np.random.default_rng(1)
    every = [(i, shape, dtype) for dtype in dtypes for i, shape in enumerate(shapes)]
    return [keras.Variable(rng.normal(size=shape), dtype=dtype, name=f"v{i}") for i, shape, dtype in every]


def gradients_of(variables: Sequence[Any], step: int) -> list[tf.Tensor]:
    """Gradients for these variables, the same in the same step."""
    rng = np.random.default_rng(10 + step)
    return [tf.cast(rng.normal(size=tuple(v.shape)), v.dtype) for v in variables]


def made(name: str, options: dict[str, Any], variables: list[Any]) -> Any:
    """A built optimizer; the weights at the places `excluded`, if that is among the options, do not decay."""
    options = {"learning_rate": 0.05, "excluded": [], **options}
    if options["learning_rate"] == "schedule":
        options["learning_rate"] = keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)
    excluded = options.pop("excluded")
    optimizer = getattr(keras.optimizers, name)(**options)
    if excluded:
        optimizer.exclude_from_weight_decay(var_list=[variables[i] for i in excluded])
    optimizer.build(variables)
    return optimizer


def tensors(variables: Sequence[Any]) -> list[tf.Tensor]:
    """Their values, which do not follow them."""
    return [tf.identity(tf.convert_to_tensor(variable.value)) for variable in variables]
