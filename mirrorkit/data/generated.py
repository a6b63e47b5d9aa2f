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

_at_exit = threading.Event()


def from_generator(make: Callable[[], Iterator[Any]], spec: Any, count: int) -> tf.data.Dataset:
    """Return `tf.data.Dataset.from_generator`, of `count` elements, that does not keep Python from ending.

    A thread of tf.data that is in Python when Python ends would wait for ever, and with it the process:
    https://github.com/tensorflow/tensorflow/issues/21277. So generators end before.
    """

    def guarded() -> Iterator[Any]:
        making = threading.Lock()
        _alive().add(making)
        elements, done = make(), object()
        while True:
            with making:
                element = done if _at_exit.is_set() else next(elements, done)
            if element is done:
                return
            yield element

    made = tf.data.Dataset.from_generator(guarded, output_signature=spec)
    return made.apply(tf.data.experimental.assert_cardinality(count))


@functools.cache
def _alive() -> weakref.WeakSet[threading.Lock]:
    """Of generators that have not ended, the locks that are held while an element is made."""
    alive: weakref.WeakSet[threading.Lock] = weakref.WeakSet()

    def end() -> None:
        _at_exit.set()
        for making in list(alive):
            if making.acquire(timeout=_PATIENCE):
                making.release()
        time.sleep(_RETURN if alive else 0.0)

    atexit.register(end)
    return alive
