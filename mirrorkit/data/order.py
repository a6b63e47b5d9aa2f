"""The order in which the examples of an epoch come, where each of them can be had by its number."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mirrorkit.data.preparation import PreparedRecipe


def order_of(count: int, *, shuffle: bool, key: Sequence[int]) -> np.ndarray:
    """Return the numbers of `count` examples in their order, int64 [count]; shuffled it depends on `key` alone."""
    return np.random.default_rng(key).permutation(count) if shuffle else np.arange(count)


class Numbered(PreparedRecipe):
    """A recipe each of whose examples can be had by its number; all of them have the same order."""

    def order(self, epoch: int) -> np.ndarray:
        """The numbers of the examples in the order of `epoch`, counted as they lie, int64 [N]."""
        return order_of(self.num_examples, shuffle=self.shuffle, key=[self.seed, epoch])
