"""The order of the examples of an epoch, where any example can be read at any time."""

from __future__ import annotations

import numpy as np


def order_of(num_examples: int, *, shuffle: bool, seed: int, epoch: int) -> np.ndarray:
    """Return the examples of an epoch in their order, int64 [N]: a pure function of its arguments."""
    if not shuffle:
        return np.arange(num_examples)
    return np.random.default_rng([seed, epoch]).permutation(num_examples)
