"""The order in which the examples of an epoch come, where each of them can be had by its number."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mirrorkit.arguments import whole_number
from mirrorkit.data.preparation import PreparedRecipe
from mirrorkit.data.weights import drawn, example_weights
from mirrorkit.errors import RecipeError


def order_of(count: int, *, shuffle: bool, key: Sequence[int]) -> np.ndarray:
    """Return the numbers of `count` examples in their order, int64 [count]; shuffled it depends on `key` alone."""
    return np.random.default_rng(key).permutation(count) if shuffle else np.arange(count)


@dataclass(frozen=True, eq=False, kw_only=True)
class Numbered(PreparedRecipe):
    """A recipe each of whose examples can be had by its number; all of them have the same order."""

    weights: Any = field(default=None, repr=False)
    replacement: bool = True
    examples_per_epoch: int | None = None
    _size: int = field(init=False, repr=False)  # the number of examples in the set

    def order(self, epoch: int) -> np.ndarray:
        """The numbers of the examples in the order of `epoch`, counted as they lie, int64 [N]."""
        count = self.num_examples
        if self.weights is None:
            return order_of(count, shuffle=self.shuffle, key=[self.seed, epoch])
        if not self.shuffle:
            return np.arange(count) % self._size
        rng = np.random.default_rng((self.seed, epoch))
        return drawn(self.weights, count, replacement=self.replacement, rng=rng)

    @property
    def weights_digest(self) -> str | None:
        """What tells the weights from others; None where there are none."""
        return None if self.weights is None else f"{zlib.crc32(self.weights, self.replacement):08x}"

    def identity(self, epoch: int, start: int) -> str:
        """Return what must be the same on all workers; see `PreparedRecipe.identity`."""
        return f"{super().identity(epoch, start)} {self.weights_digest}"

    def _examples_of_an_epoch(self, number: int, labels: Any) -> int:
        """Return how many examples an epoch has; check the arguments by which they are drawn."""
        self._set(_size=number)
        if self.weights is None:
            if self.examples_per_epoch is not None or self.replacement is not True:
                raise RecipeError("examples_per_epoch and replacement go with weights: give them, or leave these out.")
            return number
        count = number if self.examples_per_epoch is None else self.examples_per_epoch
        count = whole_number("examples_per_epoch", count, RecipeError)
        weights = example_weights(self.weights, labels, number)
        most = np.count_nonzero(weights)
        if not self.replacement and count > most:
            raise RecipeError(
                f"{count} examples of an epoch were asked for without replacement, but only {most} have a weight above "
                "0. Ask for fewer by examples_per_epoch, or draw with replacement."
            )
        self._set(weights=weights, shuffle=True)
        return count
