"""What the tests of the checks share: a small step that has every kind of state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import mirrorkit as mk
from mirrorkit._keras import keras

L = keras.layers


@pytest.fixture(scope="session")
def make_step(strategy_of: Callable[..., Any]) -> Callable[[], tuple[Any, mk.train.Step]]:
    """Return two mirrored replicas and a step with BatchNorm, Dropout and slots, built, not trained."""

    def make() -> tuple[Any, mk.train.Step]:
        strategy = strategy_of("mirrored", 2)
        with strategy.scope():
            layers = [L.Dense(6, name="first"), L.BatchNormalization(name="norm"), L.Dropout(0.5), L.Dense(1)]
            model, optimizer = keras.Sequential([keras.Input((4,)), *layers]), keras.optimizers.SGD(0.01, momentum=0.9)
        step = mk.train.Step(model, optimizer, loss="mse")
        step.build(strategy)
        return strategy, step

    return make


@pytest.fixture(scope="session")
def _shared_step(make_step: Callable[[], Any]) -> tuple[Any, mk.train.Step]:
    return make_step()


@pytest.fixture
def two_replicas(_shared_step: Any) -> Iterator[tuple[Any, mk.train.Step]]:
    """Such a step for all tests, so that its check compiles once; it gets its values back."""
    strategy, step = _shared_step
    copies = [copy for v in step.variables for copy in strategy.experimental_local_results(v.value)]
    values = [copy.numpy() for copy in copies]
    yield strategy, step
    for copy, value in zip(copies, values, strict=True):
        copy.assign(value)


@pytest.fixture(scope="session")
def numbers() -> mk.data.Batches:
    """Ten batches of 6 examples [4] with targets [1]."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 4)).astype("float32")
    y = x.sum(1, keepdims=True) + 0.1 * rng.normal(size=(60, 1)).astype("float32")
    return mk.data.batches(mk.data.arrays(x, y), global_batch_size=6)
