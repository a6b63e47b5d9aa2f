"""A model's own step with several updates, run on the replicas themselves: all rows on the first, or a share on each.

Draws are the same for a row in both, and BatchNormalization takes its moving statistics. What must agree is what
crosses replicas: the gradients given to each update, what is written into variables, and the logs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from mirrorkit._keras import keras
from mirrorkit._types import Batch, Nest
from mirrorkit.strategy import local_replica
from mirrorkit.train.ambient import ambient
from mirrorkit.train.first_batch.at_rest import at_rest
from mirrorkit.train.first_batch.compared import Ran, nudged
from mirrorkit.train.first_batch.sampled_rows import parts_of, size_of
from mirrorkit.train.keras_model.layer_state import layers_of
from mirrorkit.train.keras_model.row_draws import RowDraws, Shapes
from mirrorkit.train.replica_code.pure_step import Share
from mirrorkit.train.step.global_batch import this_replica
from mirrorkit.train.step.keras_step import KerasStep
from mirrorkit.train.step.loop_step import FirstOf, Pass
from mirrorkit.variables import assign, copies, path, unchanged

# What the sums of metrics begin with: from 0 on, a reset or a decay within the step looks like a sum, and from a number
# above those that are measured, a maximum like nothing.
_BEGIN = -3.7


class ReplicaRuns:
    """Runs a step on some rows; see `PureRuns`."""

    all_draws_known = True
    weights = ()

    def __init__(self, step: KerasStep, rows: Batch, what: FirstOf) -> None:
        self._step, self._rows = step, rows
        self._what: Pass = "train" if what == "train" else "test"
        self.before = _own_state(step)
        self.count, replicas = size_of(rows), step.strategy.num_replicas_in_sync
        self._sizes = parts_of(self.count, replicas, replicas)
        self._drawn: Shapes = []  # the draws

    def both(self) -> tuple[Ran, Ran]:
        """See `PureRuns`."""
        return self._run(everywhere=True), self._run(everywhere=False)

    def whole(self, *, nudge: bool = False, other_seeds: bool = False) -> Ran:
        """See `PureRuns`."""
        with unchanged(self._step.variables):
            weights = self._step.model.trainable_variables if nudge else []
            for weight, value in zip(weights, nudged(self._step.model, weights), strict=True):
                assign(weight, value)
            return self._run(everywhere=True)

    def _run(self, *, everywhere: bool) -> Ran:
        """Run the step from the state that it has; `everywhere`, the first replica computes all rows."""
        step, what, sizes = self._step, self._what, self._sizes
        replicas, total = 1 if everywhere else step.strategy.num_replicas_in_sync, sum(sizes)
        shapes = {tuple(variable.shape) for variable in step.variables}

        def on_replica(batch: Batch) -> None:
            local = local_replica(step.strategy)
            if everywhere and local:
                return
            replica = int(this_replica()[0])
            first, own = (0, total) if everywhere else (sum(sizes[:replica]), sizes[replica])
            rows = tf.nest.map_structure(lambda tensor: tensor[first : first + own], batch)
            share = Share(local, replicas, own, total, 1.0, lambda: tf.zeros([2], tf.int64))
            with ambient.set(draws=RowDraws(own, first, total, self._drawn, shapes)):
                _, scope = step.run(what, rows, share)
            if local == 0:
                applied[:] = scope.applied

        def on_all(batch: Batch) -> Nest:
            step.strategy.run(on_replica, args=(batch,))
            return [list(gradients) for gradients in applied]

        applied: list[Any] = []
        # To compile takes longer than to run once, but for recurrent layers, of which each time step is a layer.
        is_long = any(isinstance(layer, keras.layers.RNN) for layer in layers_of(step.model))
        run: Any = tf.function(on_all, autograph=False) if is_long else on_all
        with unchanged(step.variables):
            step.begin(what)
            for variable in step.of_epoch:
                value = copies(variable)[0].numpy()
                if tf.as_dtype(variable.dtype).is_floating and not np.any(value):
                    assign(variable, value + _BEGIN)
            with at_rest(step.model):
                gradients = run(self._rows)
            logs = step.logs(tf.constant(0), what)
            return Ran(tf.nest.map_structure(np.asarray, gradients), _own_state(step), logs)


def _own_state(step: KerasStep) -> dict[str, np.ndarray]:
    """Return what the model's code writes by itself, not through an optimizer."""
    own = [variable for variable in step.variables if id(variable) not in step.updated]
    return {path(variable): copies(variable)[0].numpy() for variable in own}
