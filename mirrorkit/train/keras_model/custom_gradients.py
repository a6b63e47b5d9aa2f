"""Gradients of weights that a custom-gradient function reads: `tf.custom_gradient`, `tf.recompute_grad`.

Such a function (`keras.remat` and `keras.ops.custom_gradient` make them too) returns gradients of its arguments and of
the `tf.Variable`s that it reads. A pass of a step computes with values in place of variables: in a
`keras.StatelessScope`. For TensorFlow these are constants, and the weights would silently have no gradient; so they are
passed as arguments. A value that was read before the function is called stays a constant.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from mirrorkit import private
from mirrorkit._keras import keras
from mirrorkit._types import KerasVariable, Nest
from mirrorkit.errors import StepError
from mirrorkit.train.ambient import ambient, replaces
from mirrorkit.train.keras_model.layer_state import takes

_Read = dict[int, tuple[KerasVariable, Any]]  # by the id of a variable, it and the value that stands for it


@replaces("StatelessScope.get_current_value", within="reads")
def _get_and_note(get: Callable[..., Any], scope: Any, variable: KerasVariable) -> Any:
    value = get(scope, variable)
    if value is not None:
        for read in ambient.reads:
            read.setdefault(id(variable), (variable, value))
    return value


@replaces("custom_gradient._graph_mode_decorator", "custom_gradient._eager_mode_decorator")
def _asking(original: Callable[..., Nest], function: Callable[..., Any], args: Any, kwargs: Any) -> Nest:
    scope = private.get("stateless_scope.get_stateless_scope")()
    has_values = scope is not None and any(isinstance(v, tf.Tensor) for v in scope.state_mapping.values())
    if not has_values or (kwargs and not tf.executing_eagerly()):  # which TensorFlow refuses
        return original(function, args, kwargs)
    return _with_weights(scope, original, functools.partial(function, **kwargs), tuple(args))


def _with_weights(scope: Any, original: Callable[..., Nest], function: Callable[..., Any], args: Nest) -> Nest:
    if not tf.executing_eagerly():  # as `original` does
        args = tf.nest.map_structure(tf.convert_to_tensor, args, expand_composites=True)
    before = _copy(scope)  # for the backward pass
    noted: _Read = {}
    with ambient.set(reads=(*ambient.reads, noted)), private.get("record.VariableWatcher")() as watcher:
        result, gradient = function(*args)
    for variable in watcher.watched_variables():  # none of the step's own: the tape sees them, and they are refused
        tf.convert_to_tensor(variable)
    read = [pair for pair in noted.values() if pair[0].trainable]
    read.sort(key=lambda pair: f"{pair[0].path}:0")  # TensorFlow's name and order
    if not read:
        return original(lambda *_: (result, gradient), args, {})
    if not takes(inspect.signature(gradient), "variables"):
        raise StepError(
            f"A custom-gradient function reads the weights {_paths(read)}, and its gradient has no argument "
            "`variables`. Let it take variables=None, and return the gradients of the arguments and those of the "
            "variables, as tf.custom_gradient asks for."
        )

    def of_all(*upstream: tf.Tensor) -> list[Any]:
        # New tensors and scopes each time: a backward pass may be built several times, and in other graphs.
        values = [tf.identity(value) for _, value in read]
        again = _copy(before)
        again.state_mapping.update({id(variable): value for (variable, _), value in zip(read, values, strict=True)})
        with again:
            of_args, of_weights = gradient(*upstream, variables=values)
        return [*tf.nest.flatten(of_args), *_checked(read, list(of_weights))]

    return original(lambda *_: (result, of_all), (*args, *(tf.convert_to_tensor(value) for _, value in read)), {})


def _copy(scope: Any) -> Any:
    """Return a scope with the values of now, which takes no part in the pass."""
    copy = keras.StatelessScope(collect_losses=scope.collect_losses, initialize_variables=False)
    copy.state_mapping = dict(scope.state_mapping)
    return copy


def _checked(read: list[tuple[KerasVariable, Any]], gradients: list[Any]) -> list[Any]:
    """Return the gradients of weights in the weights' dtypes; refuse others than one for each."""
    if len(gradients) != len(read):
        raise StepError(
            f"A custom-gradient function reads {len(read)} weights, {_paths(read)}, and its gradient returns "
            f"{len(gradients)} gradients of weights. Return one for each of `variables`."
        )
    if lost := [pair for pair, gradient in zip(read, gradients, strict=True) if gradient is None]:
        raise StepError(
            f"A custom-gradient function reads the weights {_paths(lost)}, and returns None as their gradient. In a "
            "step a weight is a tensor, which a tf.GradientTape does not watch by itself: call tape.watch(variables) "
            "before they are read. For a weight that is to have no gradient, return tf.zeros_like of it; in place of "
            "tf.grad_pass_through(f)(x), write x + tf.stop_gradient(f(x) - x)."
        )
    return [
        tf.cast(gradient, variable.dtype) if tf.is_tensor(gradient) else gradient
        for (variable, _), gradient in zip(read, gradients, strict=True)
    ]


def _paths(read: list[tuple[KerasVariable, Any]]) -> str:
    return ", ".join(str(variable.path) for variable, _ in read)
