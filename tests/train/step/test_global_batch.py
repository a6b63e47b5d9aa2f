"""Which rows of a global batch belong to which replica, and one update for several global batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from step_helpers import cut, numbers_of, train_by_hand, updates
from training_helpers import THREE, adam, keras_twin, largest_difference, tanh_net

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.data import bounds
from mirrorkit.train.step.global_batch import some_is_empty


@pytest.mark.parametrize("replicas", [1, 2, 3, 4, 7])
def test_each_row_belongs_to_one_replica(replicas: int) -> None:
    for size in range(1, 25):
        parts = [bounds(size, replica, replicas) for replica in range(replicas)]
        assert [row for first, end in parts for row in range(first, end)] == list(range(size))
        assert tuple(end - first for first, end in parts) == mk.batching.per_replica_sizes(size, replicas)
        assert bool(some_is_empty(size, replicas)) is (replicas > 1 and size <= parts[-1][0])
        for replica, part in enumerate(parts):
            for number in (tf.constant(size), size):  # a size or a replica that only the run will know
                assert tuple(map(int, bounds(number, tf.constant(replica), replicas))) == part


def test_whether_a_share_is_empty_is_known_where_the_size_is() -> None:
    assert some_is_empty(tf.constant(5), 4) is True
    assert some_is_empty(tf.constant(8), 4) is False
    assert some_is_empty(3, 1) is False

    @tf.function(input_signature=[tf.TensorSpec([], tf.int32)], autograph=False)
    def later(size: Any) -> Any:
        return some_is_empty(size, 4)

    assert [bool(later(size)) for size in (5, 8)] == [True, False]


# --- `accumulate=k`: one update for k global batches, the same as for one batch k times as large


L = keras.layers


def _joined(groups: list[Any]) -> list[Any]:
    return [tuple(np.concatenate(part) for part in zip(*group, strict=True)) for group in groups]


def test_an_update_equals_that_of_one_large_batch(make_loop: Any, numbers: Any, assert_replicas_equal: Any) -> None:
    """Parts of 11, 11 and 2 (a share of three replicas empty), then a remainder of 11 alone, then three more."""
    loop = make_loop(THREE, tanh_net, adam, metrics=["mae"], accumulate=3)
    model, optimizer = keras_twin(tanh_net, loop), adam()
    batches = cut(*numbers, sizes=[11, 11, 2, 11, 12, 7, 5])
    groups = [batches[:3], batches[3:4], batches[4:]]
    found = updates(loop, groups)
    losses = train_by_hand(model, optimizer, _joined(groups))
    np.testing.assert_allclose([logs["loss"] for logs in found], losses, rtol=1e-5)
    expected = numbers_of([*model.trainable_variables, *optimizer.variables])
    assert largest_difference(numbers_of(loop.step.variables), expected) < 1e-6  # measured: 6e-8
    assert int(loop.step.optimizer.iterations.numpy()) == 3
    assert_replicas_equal(loop)
