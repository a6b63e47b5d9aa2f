"""Check that a model's own step, as a function of values, means the same on a few rows as on parts of them."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import tensorflow as tf

from mirrorkit._types import Batch, Nest
from mirrorkit.errors import MirrorkitError, StepError
from mirrorkit.strategy import num_workers
from mirrorkit.train.first_batch.keras_updates import update_faults
from mirrorkit.train.first_batch.rows import Computed, InParts
from mirrorkit.train.first_batch.same_results import require_same_results, rows_of_chief
from mirrorkit.train.first_batch.sampled_rows import SEEN, take
from mirrorkit.train.first_batch.shards import FIRST, combined_state, small
from mirrorkit.train.first_batch.shares import CURE, SETS, Ran, cannot_run, differing
from mirrorkit.train.keras_model.layer_state import is_seed
from mirrorkit.train.reduce.sparse_gradient import SparseGradient
from mirrorkit.train.reduce.tracing import outside_replica
from mirrorkit.train.step.facts import ShardSums
from mirrorkit.train.step.functions import Functions
from mirrorkit.train.step.loop_step import Pass
from mirrorkit.train.step.supervised import Supervised
from mirrorkit.train.totals.totals import EXAMPLES
from mirrorkit.variables import path, unchanged


def compare_own(step: Supervised, batch: Batch, what: Pass) -> bool:
    """Refuse a step that on parts of a batch does not come to what it does on all rows, and an optimizer like that.

    Returns whether there were rows enough to compare.
    """
    assert step.own is not None
    step.prepare(batch, what)
    unchecked, optimizer = step.options.unchecked, step.own.found(what, batch).optimizer
    if unknown := sorted(set(unchecked) - {"rows", "state"}):
        raise StepError(f"unchecked={unknown} names no check; the checks are rows, state.")
    name = f"{what}_step of {type(step.model).__name__}"
    for found in () if optimizer is None else update_faults(optimizer):
        raise StepError(f"{name} does not do what Keras's fit does: {found}")
    shards = step.shards if what == "train" else step.strategy.num_replicas_in_sync
    if shards == 1:
        return True
    if num_workers(step.strategy) > 1:  # of which each may have rows of its own: all are to come to one verdict
        batch = rows_of_chief(step.strategy, batch, SETS * SEEN)
    there = 0 if batch is None else int(tf.nest.flatten(batch)[0].shape[0])
    size = min(there, SEEN)
    if size < 2:
        return False
    if "train" not in step.checked:
        require_same_results(step, batch, training=what == "train")
    if "rows" in unchecked:
        return True
    for number in range(min(SETS, there // size)):
        rows = np.arange(number * size, (number + 1) * size)
        with unchanged([]):  # a layer may draw from Python's or NumPy's generator
            try:
                whole, parts = outside_replica(functools.partial(_both, step, take(batch, rows), what))
            except MirrorkitError:
                raise
            except Exception as error:  # whatever a user's step may raise
                raise cannot_run(name, size, error, functools.partial(_both, step, batch, what, parts=1)) from error
        for text in differing(step.model, whole, parts):
            raise StepError(f"{name} does not mean the same on shares of a batch: {text} {CURE}")
    return True


def _both(step: Supervised, rows: Nest, what: Pass, parts: int = 2) -> list[Ran]:
    """Return what a step comes to on all rows, and on 2 `parts` of them."""
    functions, training, count = step.functions, what == "train", tf.nest.flatten(rows)[0].shape[0]
    computed = Computed(step, rows, training=training)
    compute: Any = functions.shard_sums if training else functions.shard_totals

    def of_both(weights: list[tf.Tensor], state: list[tf.Tensor], in_parts: InParts) -> list[Nest]:
        scale = [tf.ones_like(value) for value in computed.values.scale]  # the real one may overflow at first
        values = computed.values._replace(weights=weights, state=state, scale=scale)

        def of_part(part: Nest) -> Any:
            found = compute(values, (part,), FIRST, tf.constant(float(count)))
            return found if training else ShardSums({EXAMPLES: []}, found[1], found[0])

        of_sizes = ([count], [1, count - 1])[:parts]
        return [_added_up(functions, values.state, in_parts(of_part, sizes)) for sizes in of_sizes]

    return [_ran(step, one) for one in computed(of_both)]


def _added_up(functions: Functions, before: list[tf.Tensor], parts: list[ShardSums]) -> Nest:
    """Return gradients, layer state and totals of all parts."""
    totals = tf.add_n([part.totals for part in parts])
    gradients = [_gradients(functions, part) for part in parts]
    means = [tf.add_n(of_weight) / totals[EXAMPLES] for of_weight in zip(*gradients, strict=True)]
    return means, combined_state(functions, before, [part.state for part in parts], totals), totals


def _gradients(functions: Functions, sums: ShardSums) -> list[tf.Tensor]:
    of_weights = [
        tf.IndexedSlices(one.values, one.ids) if isinstance(one, SparseGradient) else one
        for one in sums.gradients[EXAMPLES]
    ]
    return [one for one in small(functions, enumerate(of_weights)) if one is not None]


def _ran(step: Supervised, found: Nest) -> Ran:
    gradients, state, totals = found
    variables = zip(step.trained.non_trainable_variables, state, strict=True)
    values = {path(variable): np.asarray(value) for variable, value in variables if not is_seed(variable)}
    logs = {name: float(value) for name, value in step.logs(totals).items()}
    return Ran([[np.asarray(one) for one in gradients]], values, logs)
