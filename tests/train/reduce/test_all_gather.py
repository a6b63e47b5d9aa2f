"""What `all_gather` takes, and where there is nothing to gather; tests/multiworker/test_gathering.py has the values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import mirrorkit as mk
from mirrorkit.errors import StepError


@pytest.mark.parametrize(
    ("rows", "match"),
    [
        (lambda: tf.constant(1.0), r"found shapes \(\)\. Gather .* add up scalars with mk.train.all_reduce"),
        (lambda: {"a": tf.zeros([3, 2]), "b": tf.zeros([2])}, r"one number of rows; found shapes \(3, 2\), \(2,\)"),
        (lambda: [], "one number of rows"),
        (lambda: tf.zeros([2], tf.complex64), "Rows of dtype complex64"),
    ],
    ids=["scalar", "other rows", "nothing", "dtype"],
)
def test_what_cannot_be_gathered(rows: Any, match: str, strategy_of: Any) -> None:
    with pytest.raises(StepError, match=match):
        strategy_of("mirrored", 2).run(lambda: mk.train.all_gather(rows()))


def test_without_other_replicas_rows_are_all(strategy_of: Any) -> None:
    """On one device, by default, and in the scope, where models are built."""
    rows = {"a": np.arange(3.0), "b": [tf.constant([1, 2, 3])]}
    of_one = strategy_of("one_device", 1).run(lambda: mk.train.all_gather(rows))
    with strategy_of("mirrored", 2).scope():
        in_scope = mk.train.all_gather(rows)
    for found in (of_one, in_scope, mk.train.all_gather(rows)):
        tf.nest.map_structure(np.testing.assert_array_equal, found, rows)
        assert all(tf.is_tensor(part) for part in tf.nest.flatten(found))


def test_values_of_replicas_are_gathered_within_them(strategy_of: Any) -> None:
    """Eagerly too; outside, they are refused."""
    strategy = strategy_of("mirrored", 2)
    values = strategy.experimental_distribute_values_from_function(
        lambda context: tf.range(2 + context.replica_id_in_sync_group)
    )
    found = strategy.run(mk.train.all_gather, args=(values,))
    assert [part.numpy().tolist() for part in strategy.experimental_local_results(found)] == 2 * [[0, 1, 0, 1, 2]]
    with strategy.scope(), pytest.raises(StepError, match=r"outside of a replica.*within strategy.run"):
        mk.train.all_gather(values)
