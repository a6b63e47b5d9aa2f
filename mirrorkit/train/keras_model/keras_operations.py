"""Keras's operations, kept from waiting within a step: for a GPU, or for more messages than are needed.

TensorFlow works with int32 in the host's memory, and Keras 3.15 uses int32 in two places: `argmax` looks at sign bits
(so its accuracies send all outputs to the host in every step), and `take` asks which indices are negative (so does
`Embedding`). `affine_transform` passes on a number that its operation wants on the host. Synchronized
BatchNormalization sends three messages per layer, and the time to trace their gradients grows with the square of the
number of layers. Keras has no public way to replace them; `tests/train/test_private_names.py` fails when these names
move.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias

import tensorflow as tf

from mirrorkit._keras import keras
from mirrorkit._types import KerasMetric, Nest, TensorLike
from mirrorkit.data import HOST
from mirrorkit.train.reduce.reduction import all_reduce

Function: TypeAlias = Callable[..., tf.Tensor]
Total: TypeAlias = Callable[[tf.Tensor], tf.Tensor]
_within = threading.local()  # a strategy traces each replica in a thread of its own


@contextmanager
def without_waits(*, of_metric: KerasMetric = None, total: Total | None = None) -> Iterator[None]:
    """Let Keras's operations stay on the device within the block, and send one message where they send several.

    Args:
        of_metric: what the block computes, where it is a metric. The winner's index becomes int64 in Keras's own; a
            metric of the user's may count on int32.
        total: what sums over the replicas in synchronized layers.
    """
    _wrap()
    names = {"signbit", "take", "affine_transform", "compute_moments_sync"}
    if type(of_metric).__module__.startswith("keras."):
        names.add("argmax")
    before = getattr(_within, "names", ()), getattr(_within, "total", None)
    _within.names, _within.total = names, total or before[1]
    try:
        yield
    finally:
        _within.names, _within.total = before


@functools.cache
def _wrap() -> None:
    """Have Keras's functions do what the block above says; outside of it they are as they were."""
    numpy, image, nn = keras.src.backend.numpy, keras.src.backend.image, keras.src.backend.nn
    for module, name, function in (
        (numpy, "signbit", _signbit),
        (numpy, "argmax", _argmax),
        (numpy, "take", _take),
        (image, "affine_transform", _affine_transform),
        (nn, "_compute_moments_sync", _compute_moments_sync),
    ):
        setattr(module, name, _within_the_block(name.removeprefix("_"), getattr(module, name), function))


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
    table = x.value if isinstance(x, keras.Variable) else x
    if isinstance(table, tf.Variable) and axis == 0 and isinstance(indices, tf.Tensor):
        return tf.gather(table, tf.where(indices < 0, indices + table.shape[0], indices))  # reads no other rows
    return original(x, indices, axis=axis)


def _affine_transform(original: Function, *args: Nest, **options: Nest) -> Nest:
    if "fill_value" in options:
        with tf.device(HOST):
            options["fill_value"] = tf.convert_to_tensor(options["fill_value"], tf.float32)
    return original(*args, **options)


def _compute_moments_sync(
    original: Function, x: tf.Tensor, axes: Sequence[int], keepdims: bool
) -> tuple[tf.Tensor, tf.Tensor]:
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        means: tuple[tf.Tensor, tf.Tensor] = original(x, axes, keepdims)
        return means
    own = tf.reduce_sum(x, axes, keepdims=True)
    count = tf.cast(tf.size(x), x.dtype) / tf.cast(tf.size(own), x.dtype)
    total, squares, count = _total([own, tf.reduce_sum(tf.square(x), axes, keepdims=True), count])
    mean = tf.math.divide_no_nan(total, count)
    variance = tf.maximum(tf.math.divide_no_nan(squares, count) - tf.square(mean), 0.0)
    return (mean, variance) if keepdims else (tf.squeeze(mean, axes), tf.squeeze(variance, axes))


def _total(values: list[tf.Tensor]) -> list[tf.Tensor]:
    """Sum each value over the replicas, by one message."""
    sizes = [value.shape.num_elements() for value in values]
    total: Total = getattr(_within, "total", None) or _sum
    parts = tf.split(total(tf.concat([tf.reshape(value, [-1]) for value in values], 0)), sizes)
    return [tf.reshape(part, value.shape) for part, value in zip(parts, values, strict=True)]


@tf.custom_gradient  # type: ignore[untyped-decorator, unused-ignore]
def _sum(message: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
    """The gradient is a sum too; without `stop_gradient` TensorFlow looks for it in the other replicas' graphs."""
    return all_reduce(tf.stop_gradient(message)), _sum
