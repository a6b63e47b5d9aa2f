"""`accumulate=k`: one update for k global batches, the same as for one batch k times as large."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from training_helpers import KINDS, keras_twin, largest_difference, sequential

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.errors import StepError

L = keras.layers
pytestmark = pytest.mark.filterwarnings("ignore:A global batch of")


def _net() -> Any:
    return sequential((4,), L.Dense(5, activation="tanh"), L.Dense(1))


def _adam() -> Any:
    return keras.optimizers.Adam(0.01)


def _updates(loop: Any, updates: list[list[Any]], *, unrolled: bool) -> list[tf.Tensor]:
    """Run each update from its list of global batches; returns the totals."""
    step = loop.step
    step.prepare(updates[0][0])
    totals = []
    for parts in updates:

        @tf.function(autograph=False)
        def update(parts: Any = tuple(parts)) -> Any:
            for part, batch in enumerate(parts):
                step.add(batch, part if unrolled else tf.constant(part) + tf.cast(tf.timestamp() * 0, tf.int32))
            return step.finish()

        totals.append(update())
    return totals


def _batches(x: Any, y: Any, *sizes: int) -> list[Any]:
    ends = np.cumsum(sizes)
    return [(x[end - size : end], y[end - size : end]) for end, size in zip(ends, sizes, strict=True)]


@pytest.mark.parametrize("unrolled", [True, False], ids=["unrolled", "counted in the graph"])
@pytest.mark.parametrize("where", KINDS, ids=str)
def test_an_update_equals_that_of_one_large_batch(
    where: Any, unrolled: bool, make_loop: Any, numbers: Any, assert_replicas_equal: Any
) -> None:
    """Parts of 11, 11 and 3 (3 leaves a share of four replicas empty), then a remainder of 11 alone, then 12 and 12."""
    x, y = numbers
    loop = make_loop(where, _net, _adam, metrics=["mae"], accumulate=3)
    model, optimizer = keras_twin(_net, loop), _adam()
    optimizer.build(model.trainable_variables)
    batches = _batches(x, y, 11, 11, 3, 11, 12, 12)
    updates = [batches[:3], batches[3:4], batches[4:]]
    found = _updates(loop, updates, unrolled=unrolled)
    for parts, totals in zip(updates, found, strict=True):
        whole, target = (np.concatenate(part) for part in zip(*parts, strict=True))
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(whole) - target) ** 2)
        logs = loop.step.logs(totals)
        np.testing.assert_allclose(logs["loss"], loss, rtol=1e-5)
        np.testing.assert_allclose(logs["mae"], np.mean(np.abs(model(whole) - target)), rtol=1e-5)
        optimizer.apply(tape.gradient(loss, model.trainable_variables))
    expected = [v.value.numpy() for v in (*model.trainable_variables, *optimizer.variables)]
    assert largest_difference([v.value.numpy() for v in loop.step.variables], expected) < 1e-6
    assert int(loop.step.optimizer.iterations.numpy()) == 3
    assert_replicas_equal(loop)


@pytest.mark.parametrize("where", KINDS, ids=str)
def test_layer_state_and_seeds_are_those_of_more_shards(where: Any, make_loop: Any, numbers: Any) -> None:
    """BatchNorm and Dropout: one device computes the k * N shards by hand, all from the same state."""

    def net() -> Any:
        return sequential((4,), L.BatchNormalization(momentum=0.5), L.Dense(8), L.Dropout(0.5), L.Dense(1))

    x, y = numbers
    loop = make_loop(where, net, accumulate=2)
    model, replicas = keras_twin(net, loop), where[1]
    bits = [(v, v.value.numpy()) for v in loop.step.model.non_trainable_variables if "seed" in v.path]
    assert len(bits) == 1
    batches = _batches(x, y, 20, 9, 20, 11)
    _updates(loop, [batches[:2], batches[2:]], unrolled=True)

    state = [v.value.numpy() for v in model.non_trainable_variables]
    seed = next(i for i, v in enumerate(model.non_trainable_variables) if "seed" in v.path)
    state[seed] = bits[0][1]
    for first in (0, 2):
        gradients, floats, examples = 0.0, 0.0, 0
        for part, (inputs, targets) in enumerate(batches[first : first + 2]):
            sizes = mk.batching.per_replica_sizes(len(inputs), replicas)
            for replica, (own, target) in enumerate(_batches(inputs, targets, *sizes)):
                if len(own) == 0:
                    continue
                for variable, value in zip(model.non_trainable_variables, state, strict=True):
                    variable.assign(value)
                shard = tf.random.experimental.stateless_fold_in(tf.constant(state[seed]), part * replicas + replica)
                model.non_trainable_variables[seed].assign(tf.cast(shard, state[seed].dtype))
                with tf.GradientTape() as tape:
                    loss = tf.reduce_sum((model(own, training=True) - target) ** 2)
                flat = [np.ravel(g) for g in tape.gradient(loss, model.trainable_variables)]
                gradients += np.concatenate(flat)
                floats += len(own) * np.concatenate([np.ravel(v) for v in model.layers[0].non_trainable_variables])
                advance = model.non_trainable_variables[seed].value.numpy() - tf.cast(shard, state[seed].dtype)
                examples += len(own)
        state = [*np.split(floats / examples, 2), state[seed] + advance]
        position = 0
        for weight in model.trainable_variables:
            size = int(np.prod(weight.shape))
            weight.assign(weight - 0.1 * gradients[position : position + size].reshape(weight.shape) / examples)
            position += size
    found = [v.value.numpy() for v in loop.step.model.non_trainable_variables]
    assert largest_difference(found, state) < 1e-5
    np.testing.assert_array_equal(found[seed], state[seed])
    weights = [[v.value.numpy() for v in m.trainable_variables] for m in (loop.step.model, model)]
    assert largest_difference(*weights) < 1e-5


def test_finish_before_add(make_loop: Any) -> None:
    loop = make_loop(("mirrored", 2), _net, accumulate=2)
    with pytest.raises(StepError, match=r"step\.add\(batch, part\)"):
        loop.step.finish()


@pytest.mark.parametrize("accumulate", [0, -1, 1.5, None, "2"])
def test_what_is_no_number_of_batches(accumulate: Any) -> None:
    with pytest.raises(StepError, match="accumulate must be a whole number from 1 on"):
        mk.train.Step(_net(), keras.optimizers.SGD(), loss="mse", accumulate=accumulate)
