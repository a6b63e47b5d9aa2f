"""Clipping acts on the mean gradient of the global batch, after the reduction: on every strategy, however it is cut.

Keras's other ways to clip: tests/optim/test_functional.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from step_helpers import cut, numbers_of, train
from training_helpers import THREE, line_net

from mirrorkit._keras import keras

pytestmark = pytest.mark.filterwarnings("ignore:A global batch of")

_LIMIT = 0.5


def _by_norm(gradients: list[np.ndarray]) -> list[np.ndarray]:
    norm = np.sqrt(sum(np.sum(g**2) for g in gradients))
    return [g * min(1, _LIMIT / norm) for g in gradients]


def _by_value(gradients: list[np.ndarray]) -> list[np.ndarray]:
    return [np.clip(g, -_LIMIT, _LIMIT) for g in gradients]


def _gradients(x: Any, y: Any, kernel: Any, bias: Any) -> list[np.ndarray]:
    error = x @ kernel + bias - y
    return [2 * x.T @ error / len(x), 2 * error.mean(0)]


@pytest.mark.parametrize(
    ("of_step", "of_optimizer", "clip"),
    [
        ({"clip_norm": _LIMIT}, {}, _by_norm),
        ({"clip_value": _LIMIT}, {}, _by_value),
        ({}, {"global_clipnorm": _LIMIT}, _by_norm),
    ],
    ids=["clip_norm", "clip_value", "Keras's global_clipnorm"],
)
def test_the_global_gradient_is_clipped(
    of_step: Any, of_optimizer: Any, clip: Callable[..., Any], make_loop: Any, numbers: Any
) -> None:
    """Against NumPy; the batch of 4 leaves a share of three replicas empty, and that of 1 all but one."""
    loop = make_loop(THREE, line_net, lambda: keras.optimizers.SGD(1.0, **of_optimizer), **of_step)
    kernel, bias = (value.astype("float64") for value in loop.step.model.get_weights())
    batches = cut(*numbers, sizes=[30, 4, 1])
    train(loop, batches)
    for x, y in batches:
        gradients = _gradients(x, y, kernel, bias)
        clipped = clip(gradients)
        if len(x) == 30:
            assert np.abs(gradients[0] - clipped[0]).max() > 0.1, "nothing was clipped"
            shards = [clip(_gradients(*shard, kernel, bias))[0] for shard in cut(x, y, sizes=[15, 15])]
            assert np.abs(np.mean(shards, 0) - clipped[0]).max() > 0.001, "clipping each shard gives the same"
        kernel, bias = kernel - clipped[0], bias - clipped[1]
    found = numbers_of(loop.step.model.trainable_variables)
    np.testing.assert_allclose(found[0], kernel, atol=1e-5)
    np.testing.assert_allclose(found[1], bias, atol=1e-5)
