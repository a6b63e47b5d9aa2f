"""Datasets of Python generators, of which an iterator may be alive when Python ends."""

from __future__ import annotations

import atexit
import functools
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

_PATIENCE = 5.0  # seconds to wait for an element that is being made
_RETURN = 0.2  # seconds in which tf.data's thread has left Python


class _Guard:
    """Held while an element is made."""

    def __init__(self) -> None:
        self.lock, self.ended = threading.Lock(), False


def from_generator(make: Callable[[], Iterator[Any]], spec: Any, count: int | None = None) -> tf.data.Dataset:
    """Return `tf.data.Dataset.from_generator`, with a known number of elements, that does not keep Python from ending.

    A thread of tf.data that is in Python when Python ends would wait for ever, and with it the process:
    https://github.com/tensorflow/tensorflow/issues/21277. So generators end before.
    """

    def guarded() -> Iterator[Any]:
        guard = _Guard()
        _alive().add(guard)
        elements, done = make(), object()
        while True:
            with guard.lock:
                element = done if guard.ended else next(elements, done)
            if element is done:
                return
            yield element

    made = tf.data.Dataset.from_generator(guarded, output_signature=spec)
    return made if count is None else made.apply(tf.data.experimental.assert_cardinality(count))


@functools.cache
def _alive() -> weakref.WeakSet[_Guard]:
    """The guards of generators that have not ended."""
    alive: weakref.WeakSet[_Guard] = weakref.WeakSet()

    def end() -> None:
        for guard in (guards := list(alive)):
            guard.ended = True
        for guard in guards:
            if guard.lock.acquire(timeout=_PATIENCE):
                guard.lock.release()
        time.sleep(_RETURN if guards else 0.0)

    atexit.register(end)
    return alive
