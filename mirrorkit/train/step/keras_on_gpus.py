"""Keras's operations, kept from making the host wait for a GPU: the same results by operations on the device.

TensorFlow works with int32 in the host's memory, and Keras 3.15 uses int32 in two places: `argmax` looks at sign bits
(so its accuracies send all outputs to the host in every step), and `take` asks which indices are negative (so does
`Embedding`). `affine_transform` hands on a number that its operation wants on the host. There is no public way to give
Keras others; `tests/placement/test_features.py` fails when these names move.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import tensorflow as tf

from mirrorkit._keras import keras
from mirrorkit.train.step.share import HOST

_numpy, _image = keras.src.backend.numpy, keras.src.backend.image


@contextmanager
def without_waits(*, of_metric: Any = None) -> Iterator[None]:
    """Let Keras's operations stay on the device within the block.

    Args:
        of_metric: what the block computes, where it is a metric. The winner's index becomes int64 in Keras's own; a
            metric of the user's may count on int32.
    """
    with ExitStack() as replaced:
        replaced.enter_context(_replaced(_numpy, "signbit", _signbit))
        replaced.enter_context(_replaced(_numpy, "take", _take))
        replaced.enter_context(_replaced(_image, "affine_transform", _affine_transform))
        if type(of_metric).__module__.startswith("keras."):
            replaced.enter_context(_replaced(_numpy, "argmax", _argmax))
        yield


@contextmanager
def _replaced(module: Any, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    """Within the block, `make(original)` stands for the original; another thread may see it, and gets the same."""
    original = getattr(module, name)
    setattr(module, name, make(original))
    try:
        yield
    finally:
        setattr(module, name, original)


def _signbit(original: Any) -> Any:
    def signbit(x: Any) -> tf.Tensor:
        x = tf.convert_to_tensor(x)
        return (
            tf.cast(tf.bitcast(tf.cast(x, tf.float32), tf.int32), tf.int64) < 0 if x.dtype.is_floating else original(x)
        )

    return signbit


def _argmax(original: Any) -> Any:
    return lambda *args, **options: tf.cast(original(*args, **options), tf.int64)


def _take(original: Any) -> Any:
    def take(x: Any, indices: Any, axis: int | None = None) -> Any:
        if tf.is_tensor(indices) and getattr(indices, "dtype", None) == tf.int32:
            indices = tf.cast(indices, tf.int64)
        return original(x, indices, axis=axis)

    return take


def _affine_transform(original: Any) -> Any:
    def affine_transform(*args: Any, fill_value: Any = 0, **options: Any) -> tf.Tensor:
        with tf.device(HOST):
            fill_value = tf.convert_to_tensor(fill_value, tf.float32)
        return original(*args, fill_value=fill_value, **options)

    return affine_transform
