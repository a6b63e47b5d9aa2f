"""The user's tf.functions become part of the function that is traced around them.

One that is traced by itself keeps what it was traced with: values that stood for a layer's weights in that pass, say.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from mirrorkit import private

_lock = threading.Lock()  # replicas are traced in turns, each in a thread
_inlining = 0  # blocks of `functions_inlined` that are open


@contextmanager
def functions_inlined() -> Iterator[None]:
    """Let the user's tf.functions become part of the function that is traced.

    Within one of their own replicas could not wait for each other, and one that is traced asks no more where it runs,
    nor for the values that variables have in a pass.
    """
    global _inlining
    _wrap_functions()
    with _lock:
        _inlining += 1
    try:
        yield
    finally:
        with _lock:
            _inlining -= 1


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
        inlined = _inlining and not function.python_function.__module__.startswith("tensorflow.")  # vectorized loops
        return (call_inlined if inlined else original)(function, *args, **options)

    private.replace("Function.__call__", called)
