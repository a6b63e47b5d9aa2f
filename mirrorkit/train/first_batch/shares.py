"""Check that a model's own step computes means over rows: that of all rows of a few must be that of unequal shares.

On the replicas themselves the step is run twice from the same state: with all rows on the first of them, then with a
share on each. Draws are the same for a row in both, and BatchNormalization takes its moving statistics. What must agree
is what crosses replicas: the gradients given to each update, what is written into variables, and the logs. That is done
with several sets of rows, since a step may do otherwise from a threshold on (the accuracy of a batch, say).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from mirrorkit._keras import keras
from mirrorkit._types import Batch, Nest
from mirrorkit.errors import MirrorkitError, StepError
from mirrorkit.strategy import first_replica, local_replica, num_workers
from mirrorkit.train.first_batch.compared import Ran, but_for_rounding, differing, nudge_of, nudged
from mirrorkit.train.first_batch.rows import at_rest
from mirrorkit.train.first_batch.same_results import rows_of_chief
from mirrorkit.train.keras_model.layer_state import layers_of
from mirrorkit.train.keras_model.row_draws import RowDraws, Shapes
from mirrorkit.train.replica_code.scope import Share
from mirrorkit.train.requirements.same_rows import ANY_ROWS, told
from mirrorkit.train.step.global_batch import this_replica
from mirrorkit.train.step.keras_step import KerasStep
from mirrorkit.train.step.loop_step import Pass
from mirrorkit.variables import assign, copies, path, unchanged

SETS = 2  # of rows

CURE = (
    "On several replicas each runs it on its share of the rows, and the gradients, single numbers given to a metric, "
    "and states are averaged, weighed by rows; so they must be means over rows (tf.reduce_mean, a keras Loss), not "
    "sums, norms or comparisons of rows with each other; and rows must draw from a SeedGenerator or without a seed, "
    "not from one that all replicas have. For a loss over the whole batch use "
    'Step.from_loss(model, optimizer, loss_fn, whole_batch=True); Step.from_compiled(model, unchecked="rows") leaves '
    "this check out."
)


class _FewRows(NamedTuple):
    """A few rows as a `GlobalBatch`: `sizes` of them on the replicas, or all of them everywhere."""

    batch: Batch
    sizes: list[int]
    everywhere: bool

    def rows(self) -> Batch:
        """See `GlobalBatch`."""
        own, first, _ = self.place()
        return tf.nest.map_structure(lambda tensor: tensor[first : first + own], self.batch)

    def rows_or_all(self) -> tuple[Batch, bool]:
        """See `GlobalBatch`."""
        return self.rows(), self.everywhere

    def examples(self) -> tf.Tensor:
        """See `GlobalBatch`."""
        return tf.constant(sum(self.sizes))

    def place(self) -> tuple[int, int, int]:
        """Return how many rows this replica has, the first of them, and how many there are."""
        replica, total = int(this_replica()[0]), sum(self.sizes)
        return (total, 0, total) if self.everywhere else (self.sizes[replica], sum(self.sizes[:replica]), total)


def compare_shares(step: KerasStep, batch: Batch, what: Pass) -> bool:
    """Refuse a model's step that on shares of a batch does not come to what it does on all rows.

    Returns whether there were rows enough to compare: of fewer than there are replicas each replica computes all.
    """
    replicas = step.strategy.num_replicas_in_sync
    most = SETS * (2 * replicas + 1)
    some = tf.nest.map_structure(lambda tensor: tensor[:most], batch)
    if num_workers(step.strategy) > 1:  # of which each may have rows of its own
        some = rows_of_chief(step.strategy, some, most)
    there = 0 if some is None else int(tf.nest.flatten(some)[0].shape[0])
    rows = min(there, 2 * replicas + 1)
    if rows < replicas:
        return False
    sizes = [2 if replica < rows - replicas else 1 for replica in range(replicas)]
    sizes[0] += rows - sum(sizes)
    sets = [
        tf.nest.map_structure(lambda tensor, first=first: tensor[first : first + rows], some)
        for first in range(0, there - rows + 1, rows)
    ]
    name = f"{what}_step of {type(step.model).__name__}"
    try:
        drawn: Shapes = []  # the draws
        wholes = _run(step, sets, sizes, what, drawn, everywhere=True)
        all_parts = _run(step, sets, sizes, what, drawn, everywhere=False)
    except MirrorkitError:
        raise
    except Exception as error:  # whatever a user's step may raise
        size = int(tf.nest.flatten(batch)[0].shape[0])
        try:
            _run(step, [batch], [size], what, [], everywhere=True)
        except Exception:  # whatever a user's step may raise
            raise cannot_run(name, rows, error) from error
        raise cannot_run(name, rows, error, ANY_ROWS) from error
    before = _own_state(step)
    compare = functools.partial(differing, step.model, before=before)
    if what == "train" and any(any(compare(*both)) for both in zip(wholes, all_parts, strict=True)):
        with unchanged(step.variables):
            for weight in step.model.trainable_variables:
                assign(weight, nudged(tf.convert_to_tensor(weight), nudge_of(step.model)))
            others = _run(step, sets, sizes, what, drawn, everywhere=True)
        all_parts = [*map(but_for_rounding, wholes, all_parts, others)]
    for whole, parts in zip(wholes, all_parts, strict=True):
        for _, found in compare(whole, parts):
            raise StepError(f"{name} does not mean the same on shares of a batch: it {found} {CURE}")
    return True


def cannot_run(
    name: str, rows: int, error: BaseException, cure: str = "The whole first batch fails, too."
) -> StepError:
    """Return the error that a few rows cannot be computed."""
    return StepError(
        f"{name} cannot be run on {rows} rows and on shares of them: {told(error)} {cure} If this is right, leave the "
        'check out: unchecked="rows".'
    )


def _run(
    step: KerasStep, sets: Sequence[Batch], sizes: list[int], what: Pass, drawn: Shapes, *, everywhere: bool
) -> list[Ran]:
    """Return what each set of rows comes to, from the same state; `everywhere`, the first replica computes all rows."""
    replicas = 1 if everywhere else step.strategy.num_replicas_in_sync
    applied: list[Sequence[tf.Tensor]] = []
    shapes = {tuple(variable.shape) for variable in step.variables}

    def on_replica(batch: Batch) -> tf.Tensor:
        local = local_replica(step.strategy)
        if everywhere and local:
            return tf.constant(0)
        rows = _FewRows(batch, sizes, everywhere)
        own, first, total = rows.place()
        checked = RowDraws(own, first, total, drawn, shapes)
        share = Share(local, replicas, own, total, 1.0, lambda: tf.zeros([2], tf.int64), checked)
        _, scope = step.run(what, rows, share)
        if local == 0:
            applied[:] = scope.applied
        return tf.constant(0)

    def on_all(batch: Batch) -> Nest:
        first_replica(step.strategy, step.strategy.run(on_replica, args=(batch,)))
        return [list(gradients) for gradients in applied]

    function: Any = tf.function(on_all, autograph=False)

    def compiled(batch: Batch) -> Nest:
        return function.get_concrete_function(batch)(*tf.nest.flatten(batch))

    # To compile takes longer than to run once, but for recurrent layers, of which each time step is a layer.
    run = compiled if any(isinstance(layer, keras.layers.RNN) for layer in layers_of(step.model)) else on_all
    ran = []
    for batch in sets:
        with unchanged(step.variables):
            step.begin(what)
            with at_rest(step.model):
                gradients = run(batch)
            values = _own_state(step)
            logs = dict(zip(step.names(what), copies(step.log_values(what))[0].numpy(), strict=True))
        ran.append(Ran(tf.nest.map_structure(np.asarray, gradients), values, logs))
    return ran


def _own_state(step: KerasStep) -> dict[str, np.ndarray]:
    """Return what the model's code writes by itself, not through an optimizer."""
    own = [variable for variable in step.variables if id(variable) not in step.updated]
    return {path(variable): copies(variable)[0].numpy() for variable in own}
