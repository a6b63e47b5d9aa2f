"""Keras's calls that talk to other replicas, update or take means: what they do within a model's own step on a replica.

A replica's mean counts by its rows. So a mean over what a mask or weights leave is divided by what counts on all
replicas, times the replica's part of the rows, in place of what counts in its own: one number for each such loss
travels before the backward pass. It is exact whatever the shares are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from mirrorkit import private
from mirrorkit._types import KerasOptimizer, KerasVariable
from mirrorkit.optim import trainable_variables
from mirrorkit.train.ambient import ambient, replaces
from mirrorkit.train.replica_code.pure_step import Divisor
from mirrorkit.train.replica_code.scope import adds_up

_MEANS = ("mean", "sum_over_batch_size")


@replaces("loss.scale_loss_for_distribution", "loss.unscale_loss_for_distribution", within="scope")
def _scale_for_distribution(original: Any, value: Any) -> Any:
    return value


@replaces("nn.compute_average_loss", within="scope")
def _average_loss(
    original: Any, per_example_loss: Any, sample_weight: Any = None, global_batch_size: Any = None
) -> Any:
    """A sum over a share by the rows of the whole batch, which the caller names, is a part of a mean."""
    value = original(per_example_loss, sample_weight, global_batch_size)
    return value if global_batch_size is None else value / tf.cast(ambient.scope.share.fraction, value.dtype)


@replaces("Mean.update_state", within="scope")
def _update_state(original: Any, metric: Any, values: Any, sample_weight: Any = None) -> Any:
    """A single number is the mean over the rows of a share: it counts as they do.

    That of one output's loss Keras weighs by a number of rows that it knows from a shape. In its `fit` batches may have
    any size, so that it knows none, and all count alike.
    """
    scope = ambient.scope
    of_output = not scope.by_user and metric.name.endswith("_loss")
    if sample_weight is None or (of_output and isinstance(sample_weight, int)):
        values = tf.convert_to_tensor(values)
        if values.shape.rank == 0:
            sample_weight = tf.cast(scope.share.fraction, metric.dtype)
    return original(metric, values, sample_weight=sample_weight)


@replaces("Variable.assign_add", within="scope")
def _assign_add(original: Any, variable: KerasVariable, value: Any) -> Any:
    """Add to this replica's part of a metric's sum, which need not be that of all rows: also within a loop."""
    scope = ambient.scope
    if scope.is_pure or not adds_up(variable) or private.get("stateless_scope.get_stateless_scope")() is not scope:
        return original(variable, value)
    value = tf.cast(value, variable.dtype)
    with scope.outside():
        new = scope.own(variable) + value
    scope.add_update((variable, new))
    return new


@replaces("Optimizer.apply", "LossScaleOptimizer.apply", within="scope optimizers")
def _apply(original: Any, optimizer: KerasOptimizer, grads: Sequence[Any], *args: Any, **options: Any) -> None:
    scope, found = ambient.scope, ambient.optimizers
    given = [*args, *options.values()]  # at most the variables
    variables = list(given[0]) if given and given[0] is not None else None
    if found is None:
        scope.apply(optimizer, list(grads), variables)
        return
    if scope is not None:
        scope.require_outermost(f"{type(optimizer).__name__}.apply is called")
    used = trainable_variables(optimizer) if variables is None else variables
    found.setdefault(id(optimizer), (optimizer, used))


@replaces("Optimizer.scale_loss", "LossScaleOptimizer.scale_loss", within="scope")
def _scale_loss(original: Any, optimizer: KerasOptimizer, loss: Any) -> Any:
    scope = ambient.scope
    return scope.scaled(loss) if scope.is_pure else original(optimizer, loss)


@replaces("GradientTape.__enter__", within="scope")
def _enter(original: Any, tape: tf.GradientTape) -> tf.GradientTape:
    """Weights that are values are watched as variables are."""
    entered: tf.GradientTape = original(tape)
    if ambient.scope.is_pure and tape._watch_accessed_variables:
        ambient.scope.watch(entered)
    return entered


@replaces("GradientTape.gradient", within="scope")
def _gradient(original: Any, tape: tf.GradientTape, target: Any, sources: Any, *args: Any, **options: Any) -> Any:
    scope = ambient.scope
    if scope.is_pure:
        scope.minimized, sources = target, scope.sources(sources)
        if not scope.differentiates:
            return tf.nest.map_structure(tf.zeros_like, sources)
        if scope.means:
            scope.separate(target, sources)
    return original(tape, target, sources, *args, **options)


@replaces("loss.apply_mask", within="scope")
def _apply_mask(original: Any, sample_weight: Any, mask: Any, dtype: Any, reduction: Any) -> Any:
    """Keras gives what counts the weight total / valid, and divides the sum by the total."""
    weight = original(sample_weight, mask, dtype=dtype, reduction=reduction)
    if mask is None or reduction not in _MEANS or not _is_of_more_rows():
        return weight
    return tf.cast(weight, dtype) * tf.cast(_fraction(mask), dtype)


@replaces("loss.reduce_values", within="scope")
def _reduce_values(
    original: Any, values: Any, sample_weight: Any = None, reduction: Any = "sum_over_batch_size"
) -> Any:
    mean, scope = original(values, sample_weight, reduction), ambient.scope
    if reduction == "sum" and scope.is_pure and not scope.by_user:  # as a mean over the share's rows
        return mean / tf.cast(scope.share.fraction, mean.dtype)
    if not _is_of_more_rows():
        return mean
    if reduction == "mean_with_sample_weight" and sample_weight is not None and values.shape.rank:
        mean *= tf.cast(_fraction(sample_weight), mean.dtype)
    return scope.divided(mean) if scope.is_pure else mean


def _is_of_more_rows() -> bool:
    """Return whether the means of a step are over more rows than its own."""
    scope = ambient.scope
    is_part = scope.is_pure and (scope.separates or ambient.draws is not None)
    return is_part or scope.share.replicas > 1


def _fraction(counts: tf.Tensor) -> tf.Tensor:
    """Return what counts here by what is to divide it."""
    scope, own = ambient.scope, tf.reduce_sum(tf.cast(counts, tf.float32))
    portion = scope.portion(own)
    if scope.is_pure:
        scope.divisor = Divisor(own, portion)
    return tf.math.divide_no_nan(own, portion)
