"""Dtypes of rows that are gathered; tests/multiworker/test_gathering.py has the values and gradients."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from mirrorkit.errors import StepError
from mirrorkit.train.reduce.gathering import gather_rows


def gathered(strategy: tf.distribute.Strategy, dtype: tf.DType) -> Any:
    def on_replica() -> Any:
        return gather_rows(tf.cast(tf.constant([1, 0]), dtype), tf.constant([2, 2], tf.int64))

    found = tf.function(lambda: strategy.run(on_replica), autograph=False)()
    return strategy.experimental_local_results(found)[1]


@pytest.mark.parametrize("dtype", [tf.bool, tf.uint8, tf.int8, tf.uint16, tf.int64, tf.bfloat16, tf.float16])
def test_rows_keep_their_dtype_and_values(dtype, strategy_of):
    found = gathered(strategy_of("mirrored", 2), dtype)
    assert found.dtype == dtype
    assert tf.cast(found, tf.int32).numpy().tolist() == [1, 0, 1, 0]


def test_a_dtype_that_cannot_be_gathered_is_named(strategy_of):
    with pytest.raises(StepError, match="complex64"):
        gathered(strategy_of("mirrored", 2), tf.complex64)
