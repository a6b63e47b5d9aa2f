"""Gradients of weights that a function with a gradient of its own reads: `tf.custom_gradient`, `tf.recompute_grad`.

Such a function (also `keras.remat` and `keras.ops.custom_gradient`, which are made of them) is given gradients of its
arguments and of the `tf.Variable`s that it reads. A pass of a step computes with values in place of variables. For
TensorFlow these are constants, and the weights would silently have no gradient; so they are passed as arguments.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import custom_gradient as _tensorflow  # private: each call passes through here

from mirrorkit._keras import keras
from mirrorkit._types import KerasVariable, Nest
from mirrorkit.errors import StepError

_within = threading.local()


class ValuesScope(keras.StatelessScope):  # type: ignore[name-defined, misc]
    """Keras's own, in which functions with a gradient of their own give one to the weights that they read."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._noted: list[dict[int, tuple[KerasVariable, tf.Tensor]]] = []  # of each function that is being called

    def __enter__(self) -> ValuesScope:
        """Let values stand for variables."""
        _wrap()
        super().__enter__()
        self._before, _within.scope = getattr(_within, "scope", None), self
        return self

    def __exit__(self, *error: Any) -> None:
        """Let variables be themselves."""
        _within.scope = self._before
        super().__exit__(*error)

    def get_current_value(self, variable: KerasVariable) -> tf.Tensor | None:
        """Return the value that stands for a variable, and note that it was read."""
        value: tf.Tensor | None = super().get_current_value(variable)
        if value is not None:
            for noted in self._noted:
                noted.setdefault(id(variable), (variable, value))
        return value

    @contextmanager
    def noting(self) -> Iterator[dict[int, tuple[KerasVariable, tf.Tensor]]]:
        """Yield what is read within the block, by the ids of the variables."""
        self._noted.append({})
        try:
            yield self._noted[-1]
        finally:
            self._noted.pop()

    def again(self) -> ValuesScope:
        """Return a scope with the values of now, which takes no part in the pass."""
        scope = ValuesScope(collect_losses=self.collect_losses)
        scope.state_mapping = dict(self.state_mapping)
        return scope


@functools.cache
def _wrap() -> None:
    for name in ("_graph_mode_decorator", "_eager_mode_decorator"):
        setattr(_tensorflow, name, _asking(getattr(_tensorflow, name)))


def _asking(original: Callable[..., Nest]) -> Callable[..., Nest]:
    @functools.wraps(original)
    def wrapped(function: Callable[..., Any], args: Any, kwargs: Any) -> Nest:
        scope = getattr(_within, "scope", None)
        if scope is None or kwargs:  # which TensorFlow refuses in a graph
            return original(function, args, kwargs)
        return _with_weights(scope, original, function, args)

    return wrapped


def _with_weights(scope: ValuesScope, original: Callable[..., Nest], function: Callable[..., Any], args: Any) -> Nest:
    args = tf.nest.map_structure(tf.convert_to_tensor, tuple(args), expand_composites=True)
    again = scope.again()  # for the backward pass
    with scope.noting() as noted:
        result, gradient = function(*args)
    read = sorted((pair for pair in noted.values() if pair[0].trainable), key=lambda pair: str(pair[0].name))
    values = [value for _, value in read]
    if not values:
        return original(lambda *_: (result, gradient), args, {})
    if not _takes_variables(gradient):
        raise StepError(
            f"A function with a gradient of its own reads the weights {_paths(read)}, and its gradient has no argument "
            "`variables`. Let it take variables=None, and return the gradients of the arguments and those of the "
            "variables, as tf.custom_gradient asks for."
        )

    def of_all(*upstream: tf.Tensor) -> list[tf.Tensor | None]:
        with again:
            of_args, of_variables = gradient(*upstream, variables=values)
        if lost := [pair for pair, of in zip(read, of_variables, strict=True) if of is None]:
            raise StepError(
                f"A function with a gradient of its own reads the weights {_paths(lost)}, and returns None as their "
                "gradient. In a step a weight is a tensor, which a tf.GradientTape does not watch by itself: call "
                "tape.watch(variables) before they are read."
            )
        return [*tf.nest.flatten(of_args, expand_composites=True), *of_variables]

    return original(lambda *_: (result, of_all), (*args, *values), {})


def _takes_variables(gradient: Callable[..., Any]) -> bool:
    parameters = inspect.signature(gradient).parameters.values()
    return any(p.name == "variables" or p.kind is p.VAR_KEYWORD for p in parameters)


def _paths(read: list[tuple[KerasVariable, tf.Tensor]]) -> str:
    return ", ".join(str(variable.path) for variable, _ in read)
