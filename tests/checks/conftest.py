"""What the tests of the checks share: a small step that has every kind of state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mirrorkit as mk
from mirrorkit._keras import keras

L = keras.layers


@pytest.fixture
def step_of(strategy_of: Callable[..., Any]) -> Callable[..., tuple[Any, mk.train.Step]]:
    """`step_of(kind, replicas)`: a strategy and a step with BatchNorm, Dropout and Adam, built, not trained."""

    def make(kind: str, replicas: int) -> tuple[Any, mk.train.Step]:
        strategy = strategy_of(kind, replicas)
        with strategy.scope():
            layers = [L.Dense(6, name="first"), L.BatchNormalization(name="norm"), L.Dropout(0.5), L.Dense(1)]
            model, optimizer = keras.Sequential([keras.Input((4,)), *layers]), keras.optimizers.Adam(0.01)
        step = mk.train.Step(model, optimizer, loss="mse")
        step.build(strategy)
        return strategy, step

    return make


@pytest.fixture(scope="session")
def numbers() -> mk.data.Batches:
    """Ten batches of 6 examples [4] with targets [1]."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 4)).astype("float32")
    y = x.sum(1, keepdims=True) + 0.1 * rng.normal(size=(60, 1)).astype("float32")
    return mk.data.batches(mk.data.arrays(x, y), global_batch_size=6)
