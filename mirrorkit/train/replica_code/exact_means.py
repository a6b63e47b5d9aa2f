"""Keras's means over what a mask or weights leave, and sums, exact over all replicas, whatever their shares.

A replica's mean counts by its rows. So it is divided by what counts on all replicas, times its part of the rows, in
place of what counts in its own: one number for each such loss travels before the backward pass.
"""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf

from mirrorkit import private
from mirrorkit.train.replica_code.pure_scope import Divisor, PureScope
from mirrorkit.train.replica_code.scope import this_scope

_MEANS = ("mean", "sum_over_batch_size")


@functools.cache
def wrap_means() -> None:
    """Let Keras's losses ask for the scope around them."""
    private.replace("loss.apply_mask", _apply_mask)
    private.replace("loss.reduce_values", _reduce_values)


def _apply_mask(original: Any, sample_weight: Any, mask: Any, dtype: Any, reduction: Any) -> Any:
    """Keras gives what counts the weight total / valid, and divides the sum by the total."""
    weight, scope = original(sample_weight, mask, dtype=dtype, reduction=reduction), _asking()
    if scope is None or mask is None or reduction not in _MEANS:
        return weight
    return tf.cast(weight, dtype) * tf.cast(_fraction(scope, mask), dtype)


def _reduce_values(
    original: Any, values: Any, sample_weight: Any = None, reduction: Any = "sum_over_batch_size"
) -> Any:
    mean, within = original(values, sample_weight, reduction), this_scope()
    if reduction == "sum" and isinstance(within, PureScope) and not within.by_user:  # as a mean over the share's rows
        return mean / tf.cast(within.share.fraction, mean.dtype)
    scope = _asking()
    if scope is None:
        return mean
    if reduction == "mean_with_sample_weight" and sample_weight is not None and values.shape.rank:
        mean *= tf.cast(_fraction(scope, sample_weight), mean.dtype)
    return scope.divided(mean) if isinstance(scope, PureScope) else mean


def _asking() -> Any:
    """Return the scope of a step whose means are over more rows than its own; else None."""
    scope = this_scope()
    of_parts = isinstance(scope, PureScope) and (scope.separates or scope.share.checked is not None)
    return scope if scope is not None and (of_parts or scope.share.replicas > 1) else None


def _fraction(scope: Any, counts: tf.Tensor) -> tf.Tensor:
    """Return what counts here by what is to divide it."""
    own = tf.reduce_sum(tf.cast(counts, tf.float32))
    portion = scope.portion(own)
    if isinstance(scope, PureScope):
        scope.divisor = Divisor(own, portion)
    return tf.math.divide_no_nan(own, portion)
