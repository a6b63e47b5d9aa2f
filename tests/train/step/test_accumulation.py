"""`accumulate=k`: one update for k global batches, the same as for one batch k times as large."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from step_helpers import cut, numbers_of, train_by_hand, updates
from training_helpers import THREE, keras_twin, largest_difference, sequential

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.errors import StepError
from mirrorkit.train.step.global_batch import HostBatch

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


def test_layer_state_and_seeds_are_those_of_more_shards(make_loop: Any, numbers: Any) -> None:
    """BatchNorm and Dropout: one device computes the k * N shards by hand, all from the same state."""

    def net() -> Any:
        return sequential((4,), L.BatchNormalization(momentum=0.5), L.Dense(8), L.Dropout(0.5), L.Dense(1))

    loop = make_loop(THREE, net, accumulate=2)
    model, replicas = keras_twin(net, loop), 3
    state = numbers_of(loop.step.model.non_trainable_variables)
    seed = next(i for i, v in enumerate(model.non_trainable_variables) if "seed" in v.path)
    batches = cut(*numbers, sizes=[20, 9, 20, 2])  # 2 on three replicas: 1, 1, 0
    groups = [batches[:2], batches[2:]]
    updates(loop, groups)

    for turn, group in enumerate(groups):
        gradients, statistics, examples = 0.0, 0.0, 0
        for part, batch in enumerate(group):
            sizes = mk.batching.per_replica_sizes(len(batch[0]), replicas)
            for replica, (x, y) in enumerate(cut(*batch, sizes=sizes)):
                if len(x) == 0:
                    continue
                for variable, value in zip(model.non_trainable_variables, state, strict=True):
                    variable.assign(value)
                own_seed = tf.constant(state[seed])
                for number in (turn, part * replicas + replica, 0):
                    own_seed = tf.random.experimental.stateless_fold_in(own_seed, tf.constant(number, tf.int64))
                model.non_trainable_variables[seed].assign(own_seed)
                with tf.GradientTape() as tape:
                    loss = tf.reduce_sum((model(x, training=True) - y) ** 2)
                gradients += _flat(tape.gradient(loss, model.trainable_variables))
                statistics += len(x) * _flat(model.layers[0].non_trainable_variables)
                examples += len(x)
        state = [*np.split(statistics / examples, 2), state[seed]]
        position = 0
        for weight in model.trainable_variables:
            size = int(np.prod(weight.shape))
            weight.assign(weight - 0.1 * gradients[position : position + size].reshape(weight.shape) / examples)
            position += size
    found = numbers_of(loop.step.model.non_trainable_variables)
    np.testing.assert_array_equal(found[seed], state[seed])
    assert largest_difference(found, state) < 1e-6
    weights = [numbers_of(m.trainable_variables) for m in (loop.step.model, model)]
    assert largest_difference(*weights) < 1e-5


def _flat(values: Any) -> np.ndarray:
    return np.concatenate([np.ravel(value) for value in values])


def test_parts_can_be_counted_in_the_graph(make_loop: Any, numbers: Any) -> None:
    """`part` may be a tensor: the first part still replaces the sums, and every part draws other random numbers."""

    def net() -> Any:
        return sequential((4,), L.Dense(8), L.Dropout(0.5), L.Dense(1))

    x, y = numbers
    results = []
    for in_graph in (False, True):
        loop = make_loop(("mirrored", 2), net, accumulate=3)
        step = loop.step.for_loop(loop.strategy)
        step.prepare((x, y))

        @tf.function(autograph=False)
        def update(step: Any = step, in_graph: bool = in_graph) -> Any:
            batches = tf.stack([x[:20], x[20:40], x[40:]]), tf.stack([y[:20], y[20:40], y[40:]])

            def add(part: Any) -> Any:
                step.add(HostBatch((batches[0][part], batches[1][part])), part)
                return part + 1

            if in_graph:
                with tf.control_dependencies(tf.while_loop(lambda part: part < 3, add, [tf.constant(0)])):
                    return step.finish()
            for part in range(3):
                add(part)
            return step.finish()

        totals = [update().numpy() for _ in range(2)]
        results.append([*totals, *numbers_of(step.variables)])
    assert all(np.array_equal(one, other) for one, other in zip(*results, strict=True))


def test_finish_before_add(make_loop: Any) -> None:
    loop = make_loop(("mirrored", 2), _net, accumulate=2)
    with pytest.raises(StepError, match=r"step\.add\(batch, part\)"):
        loop.step.for_loop(loop.strategy).finish()
