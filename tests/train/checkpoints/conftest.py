"""A run with everything in it that a checkpoint must hold, and ways to break it off."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from checkpoint_helpers import net

import mirrorkit as mk
from mirrorkit._keras import keras


@pytest.fixture(scope="session")
def pictures() -> mk.data.Recipe:
    """60 small pictures in five batches of 12, shuffled and augmented."""
    rng = np.random.default_rng(3)
    split = mk.data.arrays(rng.integers(0, 256, (60, 4, 4, 1), "uint8"), rng.normal(size=(60, 1)).astype("float32"))
    return mk.data.batches(split, global_batch_size=12, shuffle=True, seed=5, augment=[mk.data.augment.flip()])


@pytest.fixture(scope="session")
def _drawing_loop(strategy_of: Callable[..., Any]) -> mk.train.Loop:
    strategy = strategy_of("mirrored", 2)
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model, optimizer = net(), keras.optimizers.Adam(0.01)
    return mk.train.Loop(strategy, mk.train.Step(model, optimizer, loss="mse", metrics=["mae"]), steps_per_call=3)


@pytest.fixture
def fresh(line: Any, as_new: Any) -> Any:
    """The linear model on two replicas, at the beginning of its run; epochs of `recipe` have five steps."""
    return as_new(line)


@pytest.fixture
def loop(_drawing_loop: Any, as_new: Any) -> mk.train.Loop:
    """A loop on two replicas that draws random numbers, keeps statistics and has slots; compiled once, as new."""
    return as_new(_drawing_loop)


@pytest.fixture(scope="session")
def _first_values() -> dict[int, list[np.ndarray]]:
    return {}


@pytest.fixture
def as_new(_first_values: dict[int, list[np.ndarray]]) -> Callable[[mk.train.Loop], mk.train.Loop]:
    """`as_new(loop)`: the same loop as it was when it was made."""

    def reset(loop: mk.train.Loop) -> mk.train.Loop:
        variables = loop.step.variables
        first = _first_values.setdefault(id(loop), [v.value.numpy() for v in variables])
        for variable, value in zip(variables, first, strict=True):
            variable.assign(value)
        loop.position = mk.train.Position()
        return loop

    return reset
