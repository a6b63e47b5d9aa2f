"""What follows from some rows: mean gradients, layer state and totals, where they are one shard, or several.

Large gradients are given in few rows, see `folded`: several are compared, and they would take more memory than a step.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import numpy as np
import tensorflow as tf

from mirrorkit._types import Batch, Nest
from mirrorkit.optim import Joined
from mirrorkit.train.reduce.sparse_gradient import folded
from mirrorkit.train.step.changing import Changing, dense
from mirrorkit.train.step.facts import TraceFacts
from mirrorkit.train.step.functions import Functions
from mirrorkit.train.totals.totals import EXAMPLES, Term, summed

Found: TypeAlias = "tuple[list[tf.Tensor | None], list[tf.Tensor], tf.Tensor]"  # gradients, layer state, totals

_LARGE = 2**20  # numbers
FIRST = np.zeros(2, np.int64)  # the place of the first shard of the first step


def seeded(functions: Functions, state: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Return the layer state with the seeds that `on_one_shard` and `on_shards` draw from."""
    return functions.state.seeded(state, FIRST)


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


def on_one_shard(functions: Functions, values: Changing, batch: Nest, *, training: bool) -> Found:
    """Return what follows where one shard has all rows; gradients in training alone."""
    means: list[tf.Tensor | None] = []
    if training:
        found = functions.shard_sums(values, batch, FIRST)
        facts, totals, state = TraceFacts.of(found, functions.shapes), found.totals, found.state
        flat = found.sent(lambda _, rows: tf.IndexedSlices(rows.values, rows.ids))["gradients"]
        apart = Joined(functions.weights, [[i] for i in range(len(values.weights))])
        sums = small(functions, zip(facts.weights, flat, strict=True))
        means = facts.means(apart, sums, [totals[index] for index in facts.divisors])
    else:
        totals, state = functions.shard_totals(values, batch, FIRST)
    return means, combined_state(functions, values.state, [state], totals), totals


def on_shards(
    functions: Functions,
    values: Changing,
    compute: Callable[[Callable[[Batch], Nest]], list[Nest]],
    *,
    training: bool,
) -> Found:
    """Return the same of several shards, which `compute` gives to the function that it is given, one by one."""
    weights, before = values.weights, seeded(functions, values.state)

    def of_shard(batch: Batch) -> tuple[list[Term], tf.Tensor, list[tf.Tensor]]:
        with tf.GradientTape() as own:  # it tells what the model reads from what losses read
            return functions.forward(weights, before, batch, training=training, tape=own)

    with tf.GradientTape() as tape:
        tape.watch(weights)
        found = compute(of_shard)
        totals = tf.add_n([of_shard for _, of_shard, _ in found])
        divisors = tf.stop_gradient(totals)
        terms = [term for of_shard, *_ in found for term in of_shard]
        loss = summed([tf.math.divide_no_nan(term.numerator, divisors[term.divisor]) for term in terms])
    means = small(functions, enumerate(tape.gradient(loss, weights) if training else []))
    state = [functions.state.sums(before, new, functools.partial(_examples, own)) for _, own, new in found]
    return means, combined_state(functions, values.state, state, totals), totals


def combined_state(
    functions: Functions, before: Sequence[tf.Tensor], shards: Sequence[Sequence[tf.Tensor | None]], totals: tf.Tensor
) -> list[tf.Tensor]:
    """Return the layer state after a pass, from what shards add."""
    sums = [None if of_all[0] is None else tf.add_n(of_all) for of_all in zip(*shards, strict=True)]
    sent = [value for value in sums if value is not None]
    new = functions.state.new_values([value is not None for value in sums], sent, before, totals[EXAMPLES])
    return [old if after is None else after for old, after in zip(before, new, strict=True)]


def _examples(totals: tf.Tensor) -> tf.Tensor:
    return totals[EXAMPLES]
