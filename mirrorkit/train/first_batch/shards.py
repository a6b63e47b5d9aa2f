"""What follows from some rows: mean gradients, layer state and totals, where they are one shard, or several.

Large gradients are given in few rows, see `folded`: several are compared, and they would take more memory than a step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np
import tensorflow as tf

from mirrorkit.train.reduce.sparse_gradient import folded
from mirrorkit.train.step.changing import dense
from mirrorkit.train.step.functions import Functions
from mirrorkit.train.totals.totals import EXAMPLES

Found: TypeAlias = "tuple[list[tf.Tensor | None], list[tf.Tensor], tf.Tensor]"  # gradients, layer state, totals

_LARGE = 2**20  # numbers
FIRST = np.zeros(2, np.int64)  # the place of the first shard of the first step


def small(
    functions: Functions, gradients: Iterable[tuple[int, tf.Tensor | tf.IndexedSlices | None]]
) -> list[tf.Tensor | None]:
    """Return gradients, each with the number of its weight, as they are compared."""

    def compared(weight: int, gradient: tf.Tensor | tf.IndexedSlices) -> tf.Tensor:
        shape = functions.shapes[weight]
        if weight in functions.tables:  # it may be by rows in one computation, and dense in the other
            return folded(gradient)
        return folded(dense(gradient, shape)) if math.prod(shape) > _LARGE else dense(gradient, shape)

    return [None if gradient is None else compared(i, gradient) for i, gradient in gradients]


def combined_state(
    functions: Functions, before: Sequence[tf.Tensor], shards: Sequence[Sequence[tf.Tensor | None]], totals: tf.Tensor
) -> list[tf.Tensor]:
    """Return the layer state after a pass, from what shards add."""
    sums = [None if of_all[0] is None else tf.add_n(of_all) for of_all in zip(*shards, strict=True)]
    sent = [value for value in sums if value is not None]
    new = functions.state.new_values([value is not None for value in sums], sent, before, totals[EXAMPLES])
    return [old if after is None else after for old, after in zip(before, new, strict=True)]
