"""A batch as Keras takes it: inputs, targets and sample weights; float64 is cast to `keras.config.floatx()`."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from mirrorkit._keras import keras
from mirrorkit._types import KerasModel, Nest
from mirrorkit.train.keras_model.layer_state import layers_of

INPUT_NAME = "mirrorkit_input_"  # of the operation that compares an input's shape with the model's, and its number


class UnpackedBatch(NamedTuple):
    """A batch taken apart; `y` and `weight` may be absent."""

    x: Nest
    y: Nest = None
    weight: Nest = None

    @property
    def present(self) -> tuple[Nest, ...]:
        """The parts that are there."""
        return tuple(part for part in self if part is not None)


def unpack_batch(batch: Nest) -> UnpackedBatch:
    """Take `x`, `(x,)`, `(x, y)` or `(x, y, sample_weight)` apart."""
    return UnpackedBatch(*keras.utils.unpack_x_y_sample_weight(batch))


def _with_known_shapes(model: KerasModel, x: Nest) -> Nest:
    """Tell TensorFlow the shapes of a model's inputs where the data leaves them open; another one is then an error."""
    inputs, given = getattr(model, "inputs", None) or [], tf.nest.flatten(x)
    if len(inputs) != len(given):
        return x

    def known(number: int, tensor: tf.Tensor) -> tf.Tensor:
        shape = tf.TensorShape([None, *inputs[number].shape[1:]])
        if not tf.is_tensor(tensor) or tensor.shape.rank != shape.rank:
            return tensor
        if all(wanted is None or has is not None for wanted, has in zip(shape[1:], tensor.shape[1:], strict=True)):
            return tensor
        return tf.ensure_shape(tensor, shape, name=f"{INPUT_NAME}{number}")

    return tf.nest.pack_sequence_as(x, [known(number, tensor) for number, tensor in enumerate(given)])


def count_examples(batch: Nest) -> tf.Tensor:
    """Return the number of examples in the batch (int32 scalar; a constant where it is known beforehand)."""
    first = tf.nest.flatten(batch)[0]
    return tf.shape(first)[0] if first.shape[0] is None else tf.constant(first.shape[0])


def in_floatx(batch: Nest) -> Nest:
    """Cast float64 tensors, or their specs, to `keras.config.floatx()`, as Keras's `fit` does with arrays."""

    def cast(tensor: tf.Tensor | tf.TypeSpec) -> tf.Tensor | tf.TypeSpec:
        if getattr(tensor, "dtype", None) != tf.float64:
            return tensor
        if isinstance(tensor, tf.TensorSpec):
            return tf.TensorSpec(tensor.shape, keras.config.floatx())
        return tf.cast(tensor, keras.config.floatx()) if tf.is_tensor(tensor) else tensor

    return tf.nest.map_structure(cast, batch)


def as_computed(model: KerasModel, parts: UnpackedBatch) -> UnpackedBatch:
    """Return a batch as the model takes it: of known shapes, and cast, unless a layer computes in float64."""
    if not any(getattr(layer, "compute_dtype", None) == "float64" for layer in layers_of(model)):
        parts = in_floatx(parts)
    return parts._replace(x=_with_known_shapes(model, parts.x))
