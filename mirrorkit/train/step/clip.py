"""Clipping of the mean gradient, after the reduction, so that it means the same on any number of replicas."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf


class Clip(NamedTuple):
    """Bounds for the mean gradient, after the reduction; at most one of them is set."""

    norm: float | None  # of all gradients together
    value: float | None  # of each number

    def __call__(self, gradients: list[tf.Tensor]) -> list[tf.Tensor]:
        """Return the gradients within the bounds."""
        if self.norm is not None:
            gradients, _ = tf.clip_by_global_norm(gradients, self.norm)
        if self.value is not None:
            gradients = [tf.clip_by_value(gradient, -self.value, self.value) for gradient in gradients]
        return gradients
