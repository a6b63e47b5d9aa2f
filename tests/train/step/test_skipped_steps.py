"""A step whose gradient is not finite is skipped: whatever the update computed from it, every variable keeps its bits.

Overflow needs no poisoned data here; see `test_loss_scale`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from step_helpers import RunningMean, numbers_of, train, with_far_ones
from training_helpers import adam, sequential

from mirrorkit._keras import keras
from mirrorkit.train.step.loss_scale import LossScale, all_finite, only_if

L = keras.layers

_HUGE = 2.0**120


def _bits(variables: Any) -> list[bytes]:
    return [value.tobytes() for value in numbers_of(variables)]


def test_a_skipped_step_leaves_every_bit_as_it_was(make_loop: Any, numbers: Any) -> None:
    """Weights, slots, averages, transforms, moving statistics, seeds, a layer's counter; the loss is still reported."""

    class Counts(L.Layer):
        def build(self, shape: Any) -> None:
            self.calls = self.add_weight(shape=(), dtype="int32", initializer="zeros", trainable=False, name="calls")

        def call(self, x: Any) -> Any:
            self.calls.assign_add(1)
            return x

    def net() -> Any:
        frozen = L.Dense(3, trainable=False)
        return sequential((4,), frozen, L.BatchNormalization(), Counts(), L.Dropout(0.5), L.Dense(1))

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
