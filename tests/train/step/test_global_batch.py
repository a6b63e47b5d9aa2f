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
from mirrorkit.errors import StepError
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


# --- the same in a custom training loop


@pytest.mark.parametrize("where", [("one_device", 1), ("mirrored", 2)], ids=str)
@pytest.mark.parametrize("compiled", [True, False])
def test_more_batches_than_a_step_makes_an_update_of_are_refused(
    compiled: bool, where: Any, make_loop: Any, numbers: Any
) -> None:
    loop = make_loop(where, tanh_net)
    step, run = loop.step, loop.strategy.run
    batches = cut(*numbers, sizes=[12, 12])

    def update_of(*batches: Any) -> Any:
        one, *others = (run(step.compute, args=(batch,)) for batch in batches)
        for other in others:
            one = run(lambda a, b: tf.nest.map_structure(tf.add, a, b), args=(one, other))
        return step.update(loop.strategy, one)

    update = tf.function(update_of, autograph=False) if compiled else update_of
    with pytest.raises(StepError, match=r"of 2 batches, .* update of 1, .*accumulate=2"):
        update(*batches)
    for batch in batches:  # and nothing of it is left
        update(batch)
    assert int(step.optimizer.iterations.numpy()) == 2


def test_a_compute_that_is_traced_again_is_one_of_its_own(make_loop: Any, numbers: Any) -> None:
    """As the last, smaller batch is, where `update` has a trace already."""
    loop = make_loop(("one_device", 1), tanh_net)
    compute = tf.function(lambda *batch: loop.strategy.run(loop.step.compute, args=(batch,)), autograph=False)
    update = tf.function(lambda sums: loop.step.update(loop.strategy, sums), autograph=False)
    for batch in cut(*numbers, sizes=[12, 12, 9, 8, 7]):
        update(compute(*batch))
    assert int(loop.step.optimizer.iterations.numpy()) == 5


class Masked(L.Layer):
    """Marks positions that a loss leaves out."""

    supports_masking = True

    def compute_mask(self, x: Any, previous: Any = None) -> Any:
        return x[..., 0] > 0

    def call(self, x: Any) -> Any:
        return x


def test_means_over_a_mask_of_several_batches_need_a_graph(make_loop: Any) -> None:
    def net() -> Any:
        return keras.Sequential([keras.Input((3, 2)), Masked(), L.Dense(1)])

    loop = make_loop(("mirrored", 2), net, accumulate=2)
    x = np.random.default_rng(0).normal(size=(8, 3, 2)).astype("float32")
    with pytest.raises(StepError, match=r"accumulate=2, a mean .* in one tf\.function"):
        loop.strategy.run(loop.step.compute, args=((x, x[..., :1]),))
