"""Keras's operations, kept from making the host wait for a GPU: the same results by operations on the device.

TensorFlow works with int32 in the host's memory, and Keras 3.15 uses int32 in two places: `argmax` looks at sign bits
(so its accuracies send all outputs to the host in every step), and `take` asks which indices are negative (so does
`Embedding`). `affine_transform` passes on a number that its operation wants on the host. Keras has no public way
to replace them; `tests/placement/test_features.py` fails when these names move.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

import tensorflow as tf

from mirrorkit._keras import keras
from mirrorkit._types import KerasMetric, Nest, TensorLike
from mirrorkit.data import HOST

Function: TypeAlias = Callable[..., tf.Tensor]
_within = threading.local()  # a strategy traces each replica in a thread of its own


@contextmanager
def without_waits(*, of_metric: KerasMetric = None) -> Iterator[None]:
    """Let Keras's operations stay on the device within the block.

    `of_metric` is what the block computes, where it is a metric. The winner's index becomes int64 in Keras's own; a
    metric of the user's may count on int32.
    """
    _wrap()
    names = {"signbit", "take", "affine_transform"}
    if type(of_metric).__module__.startswith("keras."):
        names.add("argmax")
    before = getattr(_within, "names", ())
    _within.names = names
    try:
        yield
    finally:
        _within.names = before


@functools.cache
def _wrap() -> None:
    """Have Keras's functions do what the block above says; outside of it they are as they were."""
    numpy, image = keras.src.backend.numpy, keras.src.backend.image
    for module, function in ((numpy, _signbit), (numpy, _argmax), (numpy, _take), (image, _affine_transform)):
        name = function.__name__.removeprefix("_")
        setattr(module, name, _within_the_block(name, getattr(module, name), function))


def _within_the_block(name: str, original: Function, function: Function) -> Function:
    @functools.wraps(original)
    def chosen(*args: Nest, **options: Nest) -> Nest:
        if name in getattr(_within, "names", ()):
            return function(original, *args, **options)
        return original(*args, **options)

    return chosen


def _signbit(original: Function, x: TensorLike) -> tf.Tensor:
    x = tf.convert_to_tensor(x)
    if not x.dtype.is_floating:
        return original(x)
    return tf.cast(tf.bitcast(tf.cast(x, tf.float32), tf.int32), tf.int64) < 0


def _argmax(original: Function, *args: Nest, **options: Nest) -> Nest:
    return tf.cast(original(*args, **options), tf.int64)


def _take(original: Function, x: TensorLike, indices: TensorLike, axis: int | None = None) -> tf.Tensor:
    if tf.is_tensor(indices) and getattr(indices, "dtype", None) == tf.int32:
        indices = tf.cast(indices, tf.int64)
    return original(x, indices, axis=axis)


def _affine_transform(original: Function, *args: Nest, **options: Nest) -> Nest:
    if "fill_value" in options:
        with tf.device(HOST):
            options["fill_value"] = tf.convert_to_tensor(options["fill_value"], tf.float32)
    return original(*args, **options)
