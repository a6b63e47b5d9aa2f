"""Keras's operations, kept from waiting within a step: for a GPU, or for more messages than are needed.

TensorFlow works with int32 in the host's memory, and Keras uses int32 in two places: `argmax` looks at sign bits
(so its accuracies send all outputs to the host in every step), and `take` asks which indices are negative (so does
`Embedding`). `affine_transform` passes on a number that its operation wants on the host. Synchronized
BatchNormalization sends three messages per layer, and the time to trace their gradients grows with the square of the
number of layers.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import tensorflow as tf

from mirrorkit._keras import keras
from mirrorkit._types import Nest, TensorLike
from mirrorkit.data import HOST
from mirrorkit.errors import StepError
from mirrorkit.train.ambient import ambient, replaces
from mirrorkit.train.reduce.reduction import all_reduce, pack, unpack

Function: TypeAlias = Callable[..., tf.Tensor]
Total: TypeAlias = Callable[[tf.Tensor], tf.Tensor]


@replaces("numpy.signbit", within="on_device")
def _signbit(original: Function, x: TensorLike) -> tf.Tensor:
    x = tf.convert_to_tensor(x)
    if not x.dtype.is_floating:
        return original(x)
    return tf.cast(tf.bitcast(tf.cast(x, tf.float32), tf.int32), tf.int64) < 0


@replaces("numpy.argmax", within="on_device")
def _argmax(original: Function, *args: Nest, **options: Nest) -> Nest:
    found = original(*args, **options)
    return tf.cast(found, tf.int64) if _called_by_keras() else found  # a user's code may count on int32


def _called_by_keras() -> bool:
    """Return whether it is Keras's own metric, say, that calls an operation, and not a user's."""
    frame = inspect.currentframe()
    while frame and frame.f_globals["__name__"].startswith(("mirrorkit.", "keras.src.ops.", "keras.src.backend.")):
        frame = frame.f_back
    return frame is not None and str(frame.f_globals["__name__"]).startswith("keras.")


@replaces("numpy.take", within="on_device")
def _take(original: Function, x: TensorLike, indices: TensorLike, axis: int | None = None) -> tf.Tensor:
    if tf.is_tensor(indices) and getattr(indices, "dtype", None) == tf.int32:
        indices = tf.cast(indices, tf.int64)
    table = x.value if isinstance(x, keras.Variable) else x
    if isinstance(table, tf.Variable) and axis == 0 and isinstance(indices, tf.Tensor):
        return tf.gather(table, tf.where(indices < 0, indices + table.shape[0], indices))  # reads no other rows
    return original(x, indices, axis=axis)


@replaces("image.affine_transform", within="on_device")
def _affine_transform(original: Function, *args: Nest, **options: Nest) -> Nest:
    if "fill_value" in options:
        with tf.device(HOST):
            options["fill_value"] = tf.convert_to_tensor(options["fill_value"], tf.float32)
    return original(*args, **options)


@replaces("nn._compute_moments_sync", within="on_device")
@ambient.set(alone=False)
def _compute_moments_sync(original: Function, x: tf.Tensor, axes: Sequence[int], keepdims: bool) -> Any:
    """Moments over all replicas, with their gradient as few operations: each is made, and optimized, per replica."""
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return original(x, axes, keepdims)
    total, total_of_gradient = ambient.totals or (_sum, _sum)
    reduced = {axis % x.shape.rank for axis in tf.nest.flatten(axes)}
    kept = [1 if axis in reduced else size for axis, size in enumerate(x.shape)]

    @tf.custom_gradient  # type: ignore[untyped-decorator, unused-ignore]
    def moments(x: tf.Tensor) -> tuple[tuple[tf.Tensor, tf.Tensor], Function]:
        own = tf.reduce_sum(x, axes)
        count = tf.reshape(tf.cast(tf.size(x) // own.shape.num_elements(), x.dtype), [1])
        sums, squares, count = _by_one_message(total, [own, tf.reduce_sum(tf.square(x), axes), count])
        mean = tf.math.divide_no_nan(sums, count)
        variance = tf.math.divide_no_nan(squares, count) - tf.square(mean)

        def gradient(of_mean: tf.Tensor, of_variance: tf.Tensor) -> tf.Tensor:
            of_squares = tf.math.divide_no_nan(tf.where(variance < 0, tf.zeros([], x.dtype), of_variance), count)
            of_sums = tf.math.divide_no_nan(of_mean, count) - 2 * mean * of_squares
            of_sums, of_squares = _by_one_message(total_of_gradient, [of_sums, of_squares])
            return tf.reshape(of_sums, kept) + x * tf.reshape(2 * of_squares, kept)

        return (mean, tf.maximum(variance, 0.0)), gradient

    mean, variance = moments(x)
    return (tf.reshape(mean, kept), tf.reshape(variance, kept)) if keepdims else (mean, variance)


@contextmanager
def statistics_at_rest(layers: Sequence[Any]) -> Iterator[None]:
    """Let Keras's BatchNormalization, though not what a subclass adds to it, compute as outside of training."""
    for layer in layers:
        vars(layer)["_mirrorkit_at_rest"] = True  # not by assignment, which Keras would track
    try:
        yield
    finally:
        for layer in layers:
            del vars(layer)["_mirrorkit_at_rest"]


@replaces("BatchNormalization.call", within="on_device")
@ambient.set(alone=False)
def _batch_normalization(original: Function, layer: Any, x: tf.Tensor, training: Any = None, mask: Any = None) -> Any:
    """Keras synchronizes no statistics under a mask, without a word."""
    if "_mirrorkit_at_rest" in vars(layer):
        training = False
    context = tf.distribute.get_replica_context()
    is_one = context is None or context.num_replicas_in_sync == 1
    if layer.synchronized and training and mask is not None and not is_one:
        raise StepError(
            f"{layer.path} is a BatchNormalization(synchronized=True) whose inputs have a mask; Keras computes the "
            "statistics of masked inputs on each replica by itself. Leave out the mask before it, or use a layer that "
            "normalizes each example, such as LayerNormalization."
        )
    return original(layer, x, training=training, mask=mask)


def _by_one_message(total: Total, values: list[tf.Tensor]) -> list[tf.Tensor]:
    return unpack([total(message) for message in pack(values)], values)


@tf.custom_gradient  # type: ignore[untyped-decorator, unused-ignore]
def _sum(message: tf.Tensor) -> tuple[tf.Tensor, Total]:
    """The gradient is a sum too; without `stop_gradient` TensorFlow looks for it in the other replicas' graphs."""
    return all_reduce(tf.stop_gradient(message)), _sum
