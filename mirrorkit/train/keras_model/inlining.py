"""The user's tf.functions become part of the function that is traced around them.

One that is traced by itself keeps what it was traced with: values that stood for a layer's weights in that pass, say.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from mirrorkit import private
from mirrorkit.thread_local import ThreadLocal

_within = ThreadLocal(inlines=False)


@contextmanager
def functions_inlined() -> Iterator[None]:
    """Let the user's tf.functions become part of the function that is traced in this thread: that of one replica.

    Within one of their own replicas could not wait for each other, and one that is traced asks no more where it runs,
    nor for the values that variables have in a pass.
    """
    _wrap_functions()
    with _within.set(inlines=True):
        yield


def call_inlined(function: Any, *args: Any, **options: Any) -> Any:
    """Call what a tf.function was made of, converted by AutoGraph as in a trace of its own."""
    return _converted_call()(function.python_function, args, options)


def _call(function: Callable[..., Any], args: Sequence[Any], options: Mapping[str, Any]) -> Any:
    return function(*args, **options)


@functools.cache
def _converted_call() -> Callable[..., Any]:
    converted: Callable[..., Any] = tf.autograph.to_graph(_call)  # and whatever it calls
    return converted


@functools.cache
def _wrap_functions() -> None:
    """Let tf.functions ask whether they are to be inlined."""

    def called(original: Any, function: Any, *args: Any, **options: Any) -> Any:
        module = function.python_function.__module__
        inlined = _within.inlines and not module.startswith("tensorflow.")  # vectorized loops
        return (call_inlined if inlined else original)(function, *args, **options)

    private.replace("Function.__call__", called)
