"""A run with everything in it that a checkpoint must hold, and ways to break it off."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from checkpoint_helpers import net
from training_helpers import adam, as_new

import mirrorkit as mk


@pytest.fixture(scope="session")
def pictures() -> mk.data.Recipe:
    """60 small pictures in five batches of 12, shuffled and augmented."""
    rng = np.random.default_rng(3)
    split = mk.data.arrays(rng.integers(0, 256, (60, 4, 4, 1), "uint8"), rng.normal(size=(60, 1)).astype("float32"))
    return mk.data.batches(split, global_batch_size=12, shuffle=True, seed=5, augment=[mk.data.augment.flip()])


@pytest.fixture(scope="session")
def _drawing_loop(make_loop: Callable[..., Any]) -> mk.train.Loop:
    return make_loop(("mirrored", 2), net, adam, metrics=["mae"])


@pytest.fixture
def fresh(line: Any) -> Any:
    """The linear model on two replicas, at the beginning of its run; epochs of `recipe` have five steps."""
    return line


@pytest.fixture
def loop(_drawing_loop: Any) -> mk.train.Loop:
    """A loop on two replicas that draws random numbers, keeps statistics and has slots; compiled once, as new."""
    return as_new(_drawing_loop)
