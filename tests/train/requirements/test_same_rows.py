"""A custom step is given batches whose components have a row for each example, as any other step."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.errors import StepError


class _Own:
    def __init__(self, strategy: Any) -> None:
        with strategy.scope():
            self.model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])

    def build(self, strategy: Any) -> None:
        pass

    def compute(self, batch: Any) -> Any:
        return {"loss": tf.reduce_sum(self.model(batch[0])) + tf.reduce_sum(batch[1])}

    def update(self, strategy: Any, sums: Any) -> Any:
        return mk.train.Update(strategy, [], lambda sums: ([], sums))(sums)

    def test(self, batch: Any) -> Any:
        return {"loss": self.model(batch[0])[:, 0]}


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("what", ["fit", "evaluate"])
@pytest.mark.parametrize("other", [tf.ones([7, 1]), tf.ones([])], ids=["fewer rows", "no rows"])
def test_a_step_of_ones_own(strategy_of: Any, replicas: int, what: str, other: tf.Tensor) -> None:
    strategy = strategy_of("mirrored", replicas)
    data = tf.data.Dataset.from_tensors((tf.ones([8, 3]), other)).repeat(3)
    with pytest.raises(StepError, match=r"rows: component \[0\] has 8, component \[1\] has (7|no)\."):
        getattr(mk.train.Loop(strategy, _Own(strategy)), what)(data)
