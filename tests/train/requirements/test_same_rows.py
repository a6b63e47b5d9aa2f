"""A custom step is given batches whose components have a row for each example, as any other step."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf
from step_helpers import Line

import mirrorkit as mk
from mirrorkit.errors import StepError


@pytest.mark.parametrize(
    ("replicas", "what", "other"),
    [(1, "evaluate", tf.ones([])), (2, "fit", tf.ones([7, 1]))],
    ids=["no rows", "fewer rows"],
)
def test_a_step_of_ones_own(strategy_of: Any, replicas: int, what: str, other: tf.Tensor) -> None:
    strategy = strategy_of("mirrored", replicas)
    data = tf.data.Dataset.from_tensors((tf.ones([8, 4]), other)).repeat(3)
    with strategy.scope():
        step = Line()
    with pytest.raises(StepError, match=r"\[0\] has 8, component \[1\] has (7|no)\."):
        getattr(mk.train.Loop(strategy, step), what)(data)
