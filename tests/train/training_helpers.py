"""Plain functions for the tests of training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

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


def sequential(shape: tuple[int | None, ...], *layers: Any) -> Any:
    """A Sequential model over inputs of this shape."""
    return keras.Sequential([keras.Input(shape), *layers])


def line_net() -> Any:
    """A linear model of four inputs."""
    return sequential((4,), keras.layers.Dense(1, name="line"))


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


def linear(weights: Sequence[np.ndarray], x: np.ndarray) -> np.ndarray:
    """What `line_net` with these weights predicts, in float64."""
    return x.astype("float64") @ weights[0] + weights[1]
