"""Loss scaling: a step whose reduced gradient is not finite is skipped on every replica.

The equivalence table trains in mixed_float16, with steps that overflow (tests/equivalence).
Overflow needs no poisoned data here: with a scale near float32's end, an example far off makes the scaled gradient
infinite, while the loss stays finite.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from step_helpers import RunningMean, cut, numbers_of, train, train_by_hand, updates, with_far_ones, with_policy
from training_helpers import (
    THREE,
    Keeps,
    adam,
    keras_twin,
    largest_difference,
    line_net,
    plain_dataset,
    sequential,
    tanh_net,
)

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.train.step.loss_scale import LossScale, all_finite, only_if

L = keras.layers

_HUGE = 2.0**120


def test_scale_skips_and_weights_are_those_of_keras(make_loop: Any, numbers: Any, assert_replicas_equal: Any) -> None:
    """Against Keras's LossScaleOptimizer on one device and whole batches: halved at a skip, doubled after two steps."""
    batches = with_far_ones(numbers, batch=10, far=(1, 2))
    loop = make_loop(THREE, tanh_net, adam, loss_scale=LossScale(initial=_HUGE, growth_steps=2))
    model, inner = keras_twin(tanh_net, loop), adam()
    scaling = keras.optimizers.LossScaleOptimizer(inner, initial_scale=_HUGE, dynamic_growth_steps=2)
    scaling.build(model.trainable_variables)
    scales = []
    for x, y in batches:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x) - y) ** 2)
            scaled = scaling.scale_loss(loss)
        assert np.isfinite(loss)
        scaling.apply(tape.gradient(scaled, model.trainable_variables), model.trainable_variables)
        scales.append(float(scaling.dynamic_scale.numpy()) / _HUGE)
    assert scales == [1, 0.5, 0.25, 0.25, 0.5, 0.5], "the reference did not skip as the test wants it to"

    found = []
    for batch in batches:
        train(loop, [batch])
        found.append(loop.step.current_loss_scale / _HUGE)
    assert found == scales
    assert loop.step.skipped_steps == 2
    assert int(loop.step.optimizer.iterations.numpy()) == 4
    weights = numbers_of([*loop.step.model.trainable_variables, *loop.step.optimizer.variables])
    expected = numbers_of([*model.trainable_variables, *inner.variables])
    assert largest_difference(weights, expected) < 1e-6
    assert_replicas_equal(loop)


def test_an_overflow_in_one_part_skips_the_update_of_all(make_loop: Any, numbers: Any) -> None:
    batches = with_far_ones(numbers, batch=10, far=(2,))
    loop = make_loop(("mirrored", 2), tanh_net, adam, loss_scale=LossScale(initial=_HUGE), accumulate=2)
    model, optimizer = keras_twin(tanh_net, loop), adam()
    updates(loop, [batches[0:2], batches[2:4], batches[4:6]])
    whole = [tuple(np.concatenate(part) for part in zip(*batches[i : i + 2], strict=True)) for i in (0, 4)]
    train_by_hand(model, optimizer, whole)
    assert loop.step.skipped_steps == 1
    assert largest_difference(numbers_of(loop.step.model.trainable_variables), model.get_weights()) < 1e-6


def test_a_compiled_float16_model_brings_its_scale(strategy_of: Any, numbers: Any) -> None:
    """Keras wraps the optimizer of a mixed_float16 model in a LossScaleOptimizer by itself."""
    strategy = strategy_of("mirrored", 2)
    keras.utils.set_random_seed(0)
    with strategy.scope():
        with with_policy("mixed_float16"):
            model = sequential((4,), L.Dense(8, activation="tanh"), L.Dense(1, dtype="float32"))
            model.compile(keras.optimizers.SGD(0.01), "mse")
        other = line_net()
        other.compile(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(), 64.0, 7), "mse")
    assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    step = mk.train.Step.from_compiled(model)
    loop = mk.train.Loop(strategy, step)
    assert isinstance(step.optimizer, keras.optimizers.SGD)
    assert step.model.optimizer.inner_optimizer is step.optimizer
    step.model.optimizer.learning_rate = 0.02  # as callbacks set it
    assert step.optimizer.learning_rate.numpy() == pytest.approx(0.02)
    step.optimizer.learning_rate = 0.01
    assert step.current_loss_scale == 2.0**15
    before = model.get_weights()
    train(loop, cut(*numbers, sizes=[30]) * 9)  # the first ones overflow
    assert largest_difference(before, model.get_weights()) > 1e-3
    step = mk.train.Step.from_compiled(other)
    step.build(strategy)
    assert (step.current_loss_scale, step._options.loss_scale) == (64.0, LossScale(initial=64.0, growth_steps=7))
    assert mk.train.Step.from_compiled(model, loss_scale=8.0)._options.loss_scale == LossScale(8.0, None)


def test_the_report_counts_skipped_steps(make_loop: Any, numbers: Any) -> None:
    x, y = numbers
    far = y.copy()
    far[25] = 1e4  # in the third batch of ten
    loop = make_loop(("mirrored", 2), line_net, loss_scale=LossScale(initial=_HUGE, growth_steps=None))
    assert loop.fit(plain_dataset(x, y, batch=10), verbose=0).skipped_steps == 0
    assert loop.fit(plain_dataset(x, far, batch=10), verbose=0).skipped_steps == 1


# --- whatever the update computed from it, every variable keeps its bits


def _bits(variables: Any) -> list[bytes]:
    return [value.tobytes() for value in numbers_of(variables)]


def test_a_skipped_step_leaves_every_bit_as_it_was(make_loop: Any, numbers: Any) -> None:
    """Weights, slots, averages, transforms, moving statistics, seeds, a layer's counter; the loss is still reported."""

    def net() -> Any:
        frozen, counts = L.Dense(3, trainable=False), Keeps(lambda calls, x: calls + 1, dtype="int32")
        return sequential((4,), frozen, L.BatchNormalization(), counts, L.Dropout(0.5), L.Dense(1))

    options = {"loss_scale": LossScale(initial=_HUGE, growth_steps=50), "ema": 0.9, "clip_norm": 1.0}
    options["transforms"] = [RunningMean()]
    loop = make_loop(("mirrored", 2), net, adam, **options)
    step, (good, far, last) = loop.step, with_far_ones(numbers, batch=10, far=(1,))[:3]
    train(loop, [good])
    before = _bits(step.variables)
    assert step.skipped_steps == 0
    (logs,) = train(loop, [far])
    after = _bits(step.variables)
    changed = [v.path for v, a, b in zip(step.variables, before, after, strict=True) if a != b]
    assert changed == ["loss_scale/scale", "loss_scale/good_steps", "loss_scale/skipped_steps"]
    assert step.skipped_steps == 1
    assert step.current_loss_scale == _HUGE / 2
    assert logs["loss"] > 1e6
    train(loop, [last])
    still = [v.path for v, a, b in zip(step.variables, after, _bits(step.variables), strict=True) if a == b]
    never = {"kernel", "bias", "seed_generator_state", "learning_rate", "scale", "skipped_steps"}
    assert {path.rpartition("/")[2] for path in still} <= never


@pytest.mark.parametrize("condition", [True, False])
def test_one_value_or_the_other_bit_for_bit(condition: bool) -> None:
    """Negative zeros and NaN with other bits than usual too."""
    odd = np.array([0x7FC00001, 0xFFC00002, 0x80000000, 0x7F800000], "uint32").view("float32")
    new = [odd, None, np.array([True, False]), np.int64(2**62 + 1), odd[::-1].astype("float16")]
    old = [odd[::-1], odd, np.array([False, True]), np.int64(7), np.float16([1, 2, 3, -0.0])]
    tensors = [[None if value is None else tf.constant(value) for value in values] for values in (new, old)]
    found = tf.function(only_if)(tf.constant(condition), *tensors)
    assert found[1] is None
    expected = new if condition else old
    for i in (0, 2, 3, 4):
        assert found[i].numpy().tobytes() == expected[i].tobytes()


@pytest.mark.parametrize("place", [0, 5, 11])
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_one_number_that_is_not_finite_is_found(value: float, place: int) -> None:
    """In any tensor, of any type, and nothing else is."""
    flat = np.linspace(-6e4, 6e4, 12)
    flat[place] = value
    for numbers, finite in ((np.nan_to_num(flat, posinf=0, neginf=0), True), (flat, False)):
        parts = [tf.constant(numbers[:4], tf.float16), tf.constant(numbers[4:8], tf.bfloat16), tf.constant(numbers[8:])]
        assert bool(all_finite([*parts, tf.zeros([0]), tf.zeros([2, 3])])) is finite
