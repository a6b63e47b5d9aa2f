"""A batch as Keras takes it: inputs, targets and sample weights."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from mirrorkit._types import KerasModel, Nest
from mirrorkit.errors import StepError

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
    if not isinstance(batch, (tuple, list)):
        return UnpackedBatch(batch)
    if len(batch) not in (1, 2, 3):
        raise StepError(
            f"A batch must be x, (x, y) or (x, y, sample_weight); found a tuple of {len(batch)} parts. "
            "Put several inputs or targets into a dict."
        )
    return UnpackedBatch(*batch)


def with_known_shapes(model: KerasModel, x: Nest) -> Nest:
    """Tell TensorFlow the shapes of a model's inputs where the data leaves them open; another one is then an error."""
    inputs, given = getattr(model, "inputs", None) or [], tf.nest.flatten(x)
    if len(inputs) != len(given):
        return x

    def known(number: int, tensor: tf.Tensor) -> tf.Tensor:
        shape = tf.TensorShape([None, *inputs[number].shape[1:]])
        is_open = tf.is_tensor(tensor) and tensor.shape.rank == shape.rank and None in tensor.shape[1:]
        if not is_open:
            return tensor
        if all(wanted is None or has is not None for wanted, has in zip(shape[1:], tensor.shape[1:], strict=True)):
            return tensor
        return tf.ensure_shape(tensor, shape, name=f"{INPUT_NAME}{number}")

    return tf.nest.pack_sequence_as(x, [known(number, tensor) for number, tensor in enumerate(given)])


def count_examples(batch: Nest) -> tf.Tensor:
    """Return the number of examples in the batch (int32 scalar; a constant where it is known beforehand)."""
    first = tf.nest.flatten(batch)[0]
    return tf.shape(first)[0] if first.shape[0] is None else tf.constant(first.shape[0])
