"""When numbers of two computations are the same but for rounding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

# Differences, in parts of a number's size:
LARGEST = 1e-3  # larger than any rounding in float32
SIXTEEN = 0.05  # the same in 16 bits


def numbers(tensors: Sequence[tf.Tensor]) -> list[np.ndarray]:
    """Return them in float64; an output that is None as nothing."""
    return [np.zeros(0) if tensor is None else np.asarray(tf.cast(tensor, tf.float64)) for tensor in tensors]


def differ(one: np.ndarray, other: np.ndarray, rounding: float) -> bool:
    """Whether two arrays differ by more than rounding; NaN on either side is no difference."""
    return bool(np.any(np.abs(one - other) > rounding)) if one.shape == other.shape else True


def near(one: Any, other: Any, share: float) -> bool:
    """Whether two arrays or tensors agree but for a share of the largest number; NaN beside NaN does."""
    one, other = numbers([one, other])
    size = max(np.max(np.abs(one), initial=0.0), np.max(np.abs(other), initial=0.0))
    return one.shape == other.shape and bool(np.allclose(one, other, rtol=0, atol=share * size + 1e-6, equal_nan=True))


def shown(value: Any) -> str:
    """Return a number, or the norm of several."""
    (array,) = numbers([value])
    return f"{array.item():.6g}" if array.size == 1 else f"a norm of {np.linalg.norm(array):.6g}"
