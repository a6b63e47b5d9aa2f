"""Keras's own metrics, kept from waiting: its `argmax` has a GPU send all outputs to the host.

Keras 3.12 and later look at the sign bits of the outputs as int32 numbers, and compare the winners as int32 numbers;
TensorFlow works with int32 in the host's memory. Here both are done in int64, with the same results. There is no public
name for either; `tests/placement/test_features.py` fails when they move.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from mirrorkit._keras import keras

_backend = keras.src.backend.numpy


@contextmanager
def without_int32(metric: Any) -> Iterator[None]:
    """Let a metric of Keras's compute on the device within the block; the user's own may count on int32."""
    if not type(metric).__module__.startswith("keras."):
        yield
        return
    signbit, argmax = _backend.signbit, _backend.argmax
    _backend.signbit = _signbit
    _backend.argmax = lambda *args, **options: tf.cast(argmax(*args, **options), tf.int64)
    try:
        yield
    finally:
        _backend.signbit, _backend.argmax = signbit, argmax


def _signbit(x: Any) -> tf.Tensor:
    bits = tf.bitcast(tf.cast(x, tf.float32), tf.int32)
    return tf.cast(bits, tf.int64) < 0
