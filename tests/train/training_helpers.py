"""Plain functions for the tests of training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

KINDS = [("one_device", 1), ("mirrored", 2), ("mirrored", 4), ("central_storage", 2)]


def plain_dataset(*parts: Any, batch: int) -> tf.data.Dataset:
    """The user's own dataset of global batches, made without mirrorkit."""
    return tf.data.Dataset.from_tensor_slices(tuple(parts)).batch(batch)


def largest_difference(one: Sequence[Any], other: Sequence[Any]) -> float:
    """The largest absolute difference between two lists of arrays."""
    assert len(one) == len(other)
    assert all(np.shape(a) == np.shape(b) for a, b in zip(one, other, strict=True))
    return max(float(np.abs(np.asarray(a, "float64") - b).max()) for a, b in zip(one, other, strict=True))


def keras_twin(net: Any, loop: Any) -> Any:
    """The same net with the loop's present weights, outside of every strategy and without mirrorkit."""
    model = net()
    model.set_weights(loop.step.model.get_weights())
    return model
