"""`accumulate=k`: one update for k global batches, the same as for one batch k times as large.

With layer state and seeds, which are those of more shards: "all at once" in tests/equivalence.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from step_helpers import cut, numbers_of, train_by_hand, updates
from training_helpers import THREE, keras_twin, largest_difference, sequential

from mirrorkit._keras import keras
from mirrorkit.errors import StepError

L = keras.layers
pytestmark = pytest.mark.filterwarnings("ignore:A global batch of")


def _net() -> Any:
    return sequential((4,), L.Dense(5, activation="tanh"), L.Dense(1))


def _adam() -> Any:
    return keras.optimizers.Adam(0.01)


def _joined(groups: list[Any]) -> list[Any]:
    return [tuple(np.concatenate(part) for part in zip(*group, strict=True)) for group in groups]


def test_an_update_equals_that_of_one_large_batch(make_loop: Any, numbers: Any, assert_replicas_equal: Any) -> None:
    """Parts of 11, 11 and 2 (a share of three replicas empty), then a remainder of 11 alone, then three more."""
    loop = make_loop(THREE, _net, _adam, metrics=["mae"], accumulate=3)
    model, optimizer = keras_twin(_net, loop), _adam()
    batches = cut(*numbers, sizes=[11, 11, 2, 11, 12, 7, 5])
    groups = [batches[:3], batches[3:4], batches[4:]]
    found = updates(loop, groups)
    losses = train_by_hand(model, optimizer, _joined(groups))
    np.testing.assert_allclose([logs["loss"] for logs in found], losses, rtol=1e-5)
    expected = numbers_of([*model.trainable_variables, *optimizer.variables])
    assert largest_difference(numbers_of(loop.step.variables), expected) < 1e-6  # measured: 6e-8
    assert int(loop.step.optimizer.iterations.numpy()) == 3
    assert_replicas_equal(loop)


def test_finish_before_add(make_loop: Any) -> None:
    loop = make_loop(("mirrored", 2), _net, accumulate=2)
    with pytest.raises(StepError, match=r"step\.add\(batch, part\)"):
        loop.step.for_loop(loop.strategy).finish()
