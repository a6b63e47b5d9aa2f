"""Tables that are updated in place on two and three workers: what one process gives."""

from __future__ import annotations

from typing import Any
from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf

import mirrorkit as mk
from mirrorkit.train.step import tables

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:A global batch of")]

_SIZE, _WIDTH, _BATCH = 8192, 32, 12
_COUNT = 3 * _BATCH + 1  # the last batch leaves shares empty
_OPTIMIZERS = {
    "SGD": lambda: keras.optimizers.SGD(0.5),
    "Adam": lambda: keras.optimizers.Adam(0.02),
}


def _parts(seed: int | None = None) -> list[np.ndarray]:
    """Ids that repeat, and targets; with a seed the examples of each batch in another order."""
    rng = np.random.default_rng(0)
    ids = rng.choice([0, 5, 17, 4096, _SIZE - 1, -1], (_COUNT, 5))
    parts = [ids, rng.normal(size=(_COUNT, 1)).astype("float32")]
    if seed is None:
        return parts
    other = np.random.default_rng(seed)
    order = [i + other.permutation(min(_BATCH, _COUNT - i)) for i in range(0, _COUNT, _BATCH)]
    return [part[np.concatenate(order)] for part in parts]


def trained(strategy: tf.distribute.Strategy, name: str, how: Any, seed: int | None = None) -> list[np.ndarray]:
    """Weights and slots after two epochs, with tables that are small enough for a test."""
    with mock.patch.multiple(tables, _SOME_ROWS=2**20, _ALL_ROWS=2**20):
        return _trained(strategy, name, how, seed)


def _trained(strategy: tf.distribute.Strategy, name: str, how: Any, seed: int | None) -> list[np.ndarray]:
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(0)
    with strategy.scope():
        layers = [keras.layers.Embedding(_SIZE, _WIDTH), keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((5,), dtype="int64"), *layers])
        optimizer = _OPTIMIZERS[name]()
    loop = mk.train.Loop(strategy, mk.train.Step(model, optimizer, loss="mse", sparse_embeddings=how), steps_per_call=2)
    data = mk.data.batches(mk.data.arrays(*_parts(seed)), global_batch_size=_BATCH, shuffle=False)
    loop.fit(data, epochs=2, verbose=0)
    return [variable.value.numpy() for variable in loop.step.variables]


def _apart(one: list[np.ndarray], other: list[np.ndarray]) -> float:
    return max(float(np.max(np.abs(a.astype("float64") - b))) for a, b in zip(one, other, strict=True))


_CASES = [(2, "SGD", True), (3, "Adam", True), (2, "Adam", "lazy")]


@pytest.fixture(scope="module")
def found(on_workers: Any) -> dict[Any, list[list[np.ndarray]]]:
    return {case: on_workers(trained, *case[1:], workers=case[0]) for case in _CASES}


@pytest.mark.parametrize("case", _CASES, ids=str)
def test_as_in_one_process(case: tuple[int, str, Any], found: Any, strategy_of: Any) -> None:
    """The control is dense training in one process, where another order of the examples gives other last bits."""
    first, *others = found[case]
    for other in others:
        np.testing.assert_equal(other, first)
    one, (_, name, how) = strategy_of("one_device", 1), case
    dense = trained(one, name, False)
    control = max(_apart(trained(one, name, False, seed), dense) for seed in range(3))
    assert _apart(first, trained(one, name, "lazy") if how == "lazy" else dense) <= 3 * control
