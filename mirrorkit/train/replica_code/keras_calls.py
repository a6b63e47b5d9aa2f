"""The places where Keras's training talks to the other replicas, which a model's own code on a replica must not do.

They are wrapped once, and do what they always did wherever no `ReplicaScope` or `PureScope` is around.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from mirrorkit import private
from mirrorkit._keras import keras
from mirrorkit._types import KerasOptimizer, KerasVariable
from mirrorkit.errors import StepError
from mirrorkit.optim import Joined, functional_apply, trainable_variables
from mirrorkit.train.reduce.tracing import TraceOnce
from mirrorkit.train.reduce.transforms import Transforms
from mirrorkit.train.replica_code.exact_means import wrap_means
from mirrorkit.train.replica_code.pure_scope import PureScope
from mirrorkit.train.replica_code.scope import ReplicaScope, adds_up, this_scope
from mirrorkit.variables import path

Found = dict[int, tuple[KerasOptimizer, list[KerasVariable]]]  # by the id of the optimizer, in order of use

_noted: list[Found] = []  # of the innermost `noting_optimizers`


@contextmanager
def noting_optimizers() -> Iterator[Found]:
    """Let optimizers update nothing within the block; yields those that were to, and the variables they were given."""
    wrap_keras()
    found: Found = {}
    _noted.append(found)
    try:
        yield found
    finally:
        _noted.pop()


@functools.cache
def wrap_keras() -> None:
    """Let optimizers, tapes, means and losses ask for the scope around them."""
    wrap_means()
    for kind in ("Optimizer", "LossScaleOptimizer"):
        private.replace(f"{kind}.apply", _apply)
        private.replace(f"{kind}.scale_loss", _scale_loss)
    private.replace("GradientTape.__enter__", _enter)
    private.replace("GradientTape.gradient", _gradient)
    private.replace("Mean.update_state", _update_state)
    private.replace("Variable.assign_add", _assign_add)
    private.replace("nn.compute_average_loss", _average_loss)
    for name in ("loss.scale_loss_for_distribution", "loss.unscale_loss_for_distribution"):
        private.replace(name, lambda original, value: original(value) if this_scope() is None else value)


def _average_loss(
    original: Any, per_example_loss: Any, sample_weight: Any = None, global_batch_size: Any = None
) -> Any:
    """A sum over a share by the rows of the whole batch, which the caller names, is a part of a mean."""
    scope, value = this_scope(), original(per_example_loss, sample_weight, global_batch_size)
    if scope is None or global_batch_size is None:
        return value
    return value / tf.cast(scope.share.fraction, value.dtype)


def _update_state(original: Any, metric: Any, values: Any, sample_weight: Any = None) -> Any:
    """A single number is the mean over the rows of a share: it counts as they do.

    That of one output's loss Keras weighs by a number of rows that it knows from a shape. In its `fit` batches may have
    any size, so that it knows none, and all count alike.
    """
    scope = this_scope()
    of_output = scope is not None and not scope.by_user and metric.name.endswith("_loss")
    if scope is not None and (sample_weight is None or (of_output and isinstance(sample_weight, int))):
        values = tf.convert_to_tensor(values)
        if values.shape.rank == 0:
            sample_weight = tf.cast(scope.share.fraction, metric.dtype)
    return original(metric, values, sample_weight=sample_weight)


def _assign_add(original: Any, variable: KerasVariable, value: Any) -> Any:
    """Add to this replica's part of a metric's sum, which need not be that of all rows: also within a loop."""
    scope = this_scope()
    if (
        not isinstance(scope, ReplicaScope)
        or not adds_up(variable)
        or private.get("stateless_scope.get_stateless_scope")() is not scope
    ):
        return original(variable, value)
    value = tf.cast(value, variable.dtype)
    with scope.outside():
        new = scope.own(variable) + value
    scope.add_update((variable, new))
    return new


def _apply(original: Any, optimizer: KerasOptimizer, grads: Sequence[Any], *args: Any, **options: Any) -> Any:
    scope = this_scope()
    given = [*args, *options.values()]  # at most the variables
    variables = list(given[0]) if given and given[0] is not None else None
    if _noted:
        if scope is not None:
            scope.require_outermost(f"{type(optimizer).__name__}.apply is called")
        used = trainable_variables(optimizer) if variables is None else variables
        _noted[-1].setdefault(id(optimizer), (optimizer, used))
        return None
    if scope is None:
        return original(optimizer, grads, variables)
    if isinstance(scope, PureScope):
        return scope.apply(optimizer, list(grads), variables)
    return _update(scope, optimizer, list(grads), variables)


def _scale_loss(original: Any, optimizer: KerasOptimizer, loss: Any) -> Any:
    scope = this_scope()
    return scope.scaled(loss) if isinstance(scope, PureScope) else original(optimizer, loss)


def _enter(original: Any, tape: tf.GradientTape) -> tf.GradientTape:
    """Weights that are values are watched as variables are."""
    entered: tf.GradientTape = original(tape)
    scope = this_scope()
    if isinstance(scope, PureScope) and tape._watch_accessed_variables:
        scope.watch(entered)
    return entered


def _gradient(original: Any, tape: tf.GradientTape, target: Any, sources: Any, *args: Any, **options: Any) -> Any:
    scope = this_scope()
    if isinstance(scope, PureScope):
        scope.minimized, sources = target, scope.sources(sources)
        if scope.means:
            scope.separate(target, sources)
    return original(tape, target, sources, *args, **options)


def _update(scope: ReplicaScope, optimizer: KerasOptimizer, grads: list[Any], variables: Any) -> None:
    """Average the gradients over all rows, and make the same update of this replica's copies as every other replica."""
    if not grads:
        return
    assert not isinstance(optimizer, keras.optimizers.LossScaleOptimizer)  # refused when the step was traced
    scope.require_outermost(f"{type(optimizer).__name__}.apply is called")
    own_variables = trainable_variables(optimizer)
    given = own_variables if variables is None else list(variables)
    pairs = [(tf.convert_to_tensor(g), variable) for g, variable in zip(grads, given, strict=True) if g is not None]
    if not pairs:
        raise StepError(f"No gradients were given to {type(optimizer).__name__} for any variable.")
    means = scope.combine([tf.ensure_shape(gradient, variable.shape) for gradient, variable in pairs])
    with scope.outside():
        scope.applied.append(means)
        of, transforms = [variable for _, variable in pairs], scope.transforms[id(optimizer)]
        changing = [*own_variables, *optimizer.variables, *transforms.variables]
        key = (id(optimizer), *map(id, of))
        if key not in scope.updates:
            if missing := [path(variable) for g, variable in zip(grads, given, strict=True) if g is None]:
                warnings.warn(  # as Keras's `apply` does
                    f"Gradients do not exist for variables {missing} when minimizing the loss.", stacklevel=2
                )
            scope.updates[key] = TraceOnce(_pure_update(optimizer, of, transforms), reads=True)
        own = [scope.own(variable) for variable in changing]
        step = tf.cast(scope.own(optimizer.iterations), tf.int32)
        new = scope.updates[key]([tf.convert_to_tensor(variable) for variable in own], means, step)
        for variable, value in zip(own, new, strict=True):
            if value is not None:
                variable.assign(value)


def _pure_update(
    optimizer: KerasOptimizer, of: Sequence[KerasVariable], transforms: Transforms
) -> Callable[..., list[tf.Tensor | None]]:
    """Return an update by gradients of these variables: from the values of all that changes to new ones.

    These are the optimizer's variables, its own, and the states of the transforms.
    """
    trained = trainable_variables(optimizer)
    size, last = len(trained), len(trained) + len(optimizer.variables)
    apart = Joined(trained, [[place] for place in range(size)])

    def update(values: list[tf.Tensor], means: list[tf.Tensor], step: tf.Tensor) -> list[tf.Tensor | None]:
        weights, slots, states = values[:size], values[size:last], values[last:]
        by_id = dict(zip(map(id, of), means, strict=True))
        gradients, states = transforms([by_id.get(id(one)) for one in trained], states, step, apart)
        by_id |= zip(map(id, trained), gradients, strict=True)
        weights, slots = functional_apply(optimizer, weights, slots, [by_id[id(one)] for one in of], of=of)
        return [None if new is old else new for old, new in zip(values, [*weights, *slots, *states], strict=True)]

    return update
