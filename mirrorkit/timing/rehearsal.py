"""Run a function once to compile it, and restore every variable."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from mirrorkit import private
from mirrorkit._keras import keras
from mirrorkit.errors import StepError
from mirrorkit.printing import few
from mirrorkit.timing.timer import wait_for_devices
from mirrorkit.variables import Snapshot, path, unchanged

_UNLIFTABLE = "UnliftableError"  # TensorFlow's error for a first value that depends on the call; the class is private
_ADVICE = (
    "Create variables before the warm-up: optimizer.build(model.trainable_variables) for an optimizer, a keras.Input "
    "or model.build(shape) for a model."
)
_CANNOT_FILL = (
    "The first call of {name} creates variables whose first values depend on that call{names}, so warm_up could not "
    "restore them; it has not run the function. " + _ADVICE
)


def rehearse(function: Callable[..., Any], arguments: tuple[Any, ...], restore: Any) -> None:
    """Do what `mk.timing.warm_up` says; see there."""
    if not tf.executing_eagerly():
        raise StepError("warm_up was called within a tf.function or a replica. Call it outside, before the training.")
    things = list(restore) if isinstance(restore, (list, tuple)) else [restore]
    variables = [*_variables_of(things), *filter(_is_variable, tf.nest.flatten(arguments))]
    if not variables and not _is_traced(function):
        raise StepError(
            f"warm_up was given {_name(function)}, which is not a tf.function, and nothing to restore, so it cannot "
            "know what a call changes. Pass restore=[model, optimizer]: variables, or objects that have `.variables`; "
            "or decorate the function with @tf.function."
        )
    with unchanged(variables) as snapshot, _remembering(snapshot, things):
        if isinstance(function, tf.types.experimental.ConcreteFunction):
            snapshot.add_captured(function)
        function(*arguments)
        made = [variable for variable in _variables_of(things) if not snapshot.holds(variable)]
    if made:
        raise StepError(
            f"The first call of {_name(function)} created variables outside of any tf.function and changed them "
            f"({few([*map(path, made)])}). warm_up has restored all others, but does not know the first values of "
            "these. " + _ADVICE
        )
    wait_for_devices()


@contextmanager
def _remembering(snapshot: Snapshot, things: list[Any]) -> Iterator[None]:
    """Within the block, remember the variables of every `tf.function` before it runs; a plain function may call it.

    TensorFlow has no hook for this. So the one method by which every `tf.function` is called is wrapped for the
    duration of the block.
    """

    def remember_and_call(call: Callable[..., Any], function: Any, *args: Any, **kwargs: Any) -> Any:
        if tf.executing_eagerly() and _is_traced(function):  # one within a trace belongs to what is being traced
            snapshot.add_captured(_trace(function, args, kwargs))
            # A first trace creates and fills variables, of which some are not used yet.
            snapshot.add(_variables_of(things))
        return call(function, *args, **kwargs)

    with private.replace("Function.__call__", remember_and_call):
        yield


def _trace(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Trace a `tf.function` for these arguments. Variables that its first trace creates have values afterwards.

    TensorFlow would fill most of them within the first call, where their first values cannot be seen.
    """

    def fill_at_once(create: Callable[..., Any], **options: Any) -> Any:
        if not callable(options.get("initial_value")):
            return create(**options)
        options["experimental_enable_variable_lifting"] = False
        with tf.init_scope():
            return create(**options)

    with tf.variable_creator_scope(fill_at_once):
        try:
            traced = function.get_concrete_function(*args, **kwargs)
        except Exception as error:
            if type(error).__name__ != _UNLIFTABLE:
                raise
            raise StepError(_CANNOT_FILL.format(name=_name(function), names="")) from error
    empty = [v for v in traced.graph.variables if not tf.raw_ops.VarIsInitializedOp(resource=v.handle)]
    if empty:
        raise StepError(_CANNOT_FILL.format(name=_name(function), names=f" ({few([*map(path, empty)])})"))
    return traced


def _variables_of(things: list[Any]) -> list[Any]:
    """Return all variables of these variables, models, optimizers and the like, some perhaps twice.

    Raises:
        StepError: something that has none.
    """
    variables: list[Any] = []
    for thing in things:
        if _is_variable(thing):
            variables.append(thing)
            continue
        own = getattr(thing, "variables", None)
        if own is None:
            raise StepError(
                f"warm_up(restore=...) takes variables and objects that have `.variables`, such as a model, an "
                f"optimizer or a mk.train.Step; found {thing!r}."
            )
        variables += own() if callable(own) else own
        variables += getattr(thing, "metrics_variables", [])  # Keras leaves them out of a model's variables
        variables += getattr(getattr(thing, "optimizer", None), "variables", [])
    return variables


def _is_variable(thing: Any) -> bool:
    return isinstance(thing, (tf.Variable, keras.Variable))


def _is_traced(function: Any) -> bool:
    """Return whether the function can say, once traced, which variables it uses."""
    if isinstance(function, tf.types.experimental.ConcreteFunction):
        return True
    return hasattr(function, "get_concrete_function") and not tf.config.functions_run_eagerly()


def _name(function: Any) -> str:
    return getattr(function, "__name__", type(function).__name__)
