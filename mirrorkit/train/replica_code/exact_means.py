"""Keras's means over what a mask or weights leave, exact over all replicas, whatever their shares.

A replica's mean counts by its rows. So it is divided by what counts on all replicas, times its part of the rows, in
place of what counts in its own: one number for each such loss travels before the backward pass.
"""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf

from mirrorkit import private
from mirrorkit.train.replica_code.scope import this_scope

_MEANS = ("mean", "sum_over_batch_size")


@functools.cache
def wrap_means() -> None:
    """Let Keras's losses ask for the scope around them."""
    private.replace("loss.apply_mask", _apply_mask)
    private.replace("loss.reduce_values", _reduce_values)


def _apply_mask(original: Any, sample_weight: Any, mask: Any, dtype: Any, reduction: Any) -> Any:
    """Keras gives what counts the weight total / valid, and divides the sum by the total."""
    scope = this_scope()
    if scope is None or scope.share.replicas == 1 or mask is None or reduction not in _MEANS:
        return original(sample_weight, mask, dtype=dtype, reduction=reduction)
    own = tf.reduce_sum(tf.cast(mask, tf.float32))
    fraction = tf.cast(tf.math.divide_no_nan(own, scope.portion(own)), dtype)
    weight = original(sample_weight, mask, dtype=dtype, reduction=reduction)
    return tf.cast(weight, dtype) * fraction


def _reduce_values(
    original: Any, values: Any, sample_weight: Any = None, reduction: Any = "sum_over_batch_size"
) -> Any:
    scope, mean = this_scope(), original(values, sample_weight, reduction)
    is_weighted = reduction == "mean_with_sample_weight" and sample_weight is not None and values.shape.rank
    if scope is None or scope.share.replicas == 1 or not is_weighted:
        return mean
    own = tf.reduce_sum(tf.cast(sample_weight, tf.float32))
    return mean * tf.cast(tf.math.divide_no_nan(own, scope.portion(own)), mean.dtype)
