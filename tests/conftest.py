"""One TensorFlow device layout for the whole test process: the CPU split into four virtual devices.

Fixtures for the tests:
    strategy_of(kind, replicas)      a strategy over the first virtual devices, made once per session
    run_python(code, ...)            run code in a fresh process, for tests that need another device layout
"""

from __future__ import annotations

import os

# Before TensorFlow is first imported: it reads this once. Tests only; the package itself leaves logging alone.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from collections.abc import Callable

import pytest
import tensorflow as tf

from mirrorkit import devices, strategy
from mirrorkit._keras import keras

REPLICAS = 4
devices.split_cpu(REPLICAS)


@pytest.fixture(scope="session")
def strategy_of() -> Callable[[str, int], tf.distribute.Strategy]:
    """`strategy_of("mirrored", 2)`: kinds as in `mirrorkit.strategy.create`, over the first `replicas` CPU devices."""
    made: dict[tuple[str, int], tf.distribute.Strategy] = {}

    def get(kind: str, replicas: int) -> tf.distribute.Strategy:
        if (kind, replicas) not in made:
            made[kind, replicas] = strategy.create(kind, devices=f"cpu:{replicas}")
        return made[kind, replicas]

    return get


@pytest.fixture(autouse=True)
def _seeded() -> None:
    keras.utils.set_random_seed(0)
