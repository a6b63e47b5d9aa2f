"""The order in which the examples of an epoch come, where each of them can be had by its number."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def order_of(count: int, *, shuffle: bool, key: Sequence[int]) -> np.ndarray:
    """Return the numbers of `count` examples in their order, int64 [count]; shuffled it depends on `key` alone."""
    return np.random.default_rng(key).permutation(count) if shuffle else np.arange(count)
