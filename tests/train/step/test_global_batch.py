"""Which rows of a global batch belong to which replica."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

import mirrorkit as mk
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
