"""Class weights as sample weights, as Keras's `fit` takes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import tensorflow as tf

from mirrorkit._types import Nest, Spec
from mirrorkit.arguments import is_whole
from mirrorkit.errors import StepError
from mirrorkit.train.keras_model.outputs import unpack_batch
from mirrorkit.variables import fixed_number


@dataclass(frozen=True)
class ClassWeights:
    """Turns class weights into sample weights: `(x, y) -> (x, y, sample_weight)`."""

    table: tuple[float, ...]  # the weight of each class

    @classmethod
    def of(cls, class_weight: Mapping[int, float], element_spec: Spec) -> ClassWeights:
        """Take what `fit(class_weight=...)` was given; refuse what does not fit the data."""
        batch = unpack_batch(element_spec)
        if batch.weight is not None or not isinstance(batch.y, tf.TypeSpec) or (batch.y.shape.rank or 0) > 2:
            raise StepError(
                "class_weight needs elements (x, y) with a single target, classes [N] or one-hot [N, C]; found "
                f"{element_spec}. With sample weights in the data, multiply the class weights into them."
            )
        if not all(is_whole(index, 0) and index < 2**20 for index in class_weight):
            raise StepError(
                "class_weight maps class indices (whole numbers from 0 on, below 2**20) to weights, found "
                f"{class_weight}."
            )
        cure = "Multiply by it in the loss, which reads it in each step, or give the data sample weights."
        numbers = {index: fixed_number("class_weight", weight, cure) for index, weight in class_weight.items()}
        return cls(tuple(numbers.get(index, 1.0) for index in range(max(numbers) + 1)))

    def __call__(self, x: Nest, y: tf.Tensor) -> tuple[Nest, tf.Tensor, tf.Tensor]:
        """Add the weights of a batch's examples; as in Keras, a real target is rounded, and others weigh 1."""
        classes = len(self.table)
        one_hot = len(y.shape) == 2 and y.shape[-1] != 1
        numbers = tf.round(y) if y.dtype.is_floating else y
        index = tf.argmax(y, -1) if one_hot else tf.reshape(tf.cast(numbers, tf.int64), [-1])
        weight = tf.gather(tf.constant(self.table), tf.clip_by_value(index, 0, classes - 1))
        return x, y, tf.where((index >= 0) & (index < classes), weight, 1.0)
