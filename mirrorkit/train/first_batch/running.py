"""A step that is a function of values, run on some rows in parts: mean gradients, layer state, logs, or outputs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from mirrorkit._keras import keras
from mirrorkit._types import Nest
from mirrorkit.errors import StepError
from mirrorkit.train.first_batch.compared import Ran, is_loss, nudge_of, nudged
from mirrorkit.train.first_batch.rows import Computed, InParts
from mirrorkit.train.first_batch.sampled_rows import parts_of
from mirrorkit.train.keras_model.calling import value_scope
from mirrorkit.train.keras_model.layer_state import is_seed
from mirrorkit.train.reduce.sparse_gradient import SparseGradient, folded
from mirrorkit.train.step.facts import Changing, ShardSums
from mirrorkit.train.step.functions import Functions, dense
from mirrorkit.train.step.loop_step import FirstOf, Pass
from mirrorkit.train.step.supervised import Supervised
from mirrorkit.train.totals.totals import DIVISOR, EXAMPLES, LOSS
from mirrorkit.variables import path

_FIRST = np.zeros(2, np.int64)  # the place of the first shard of the first step
_LARGE = 2**20  # numbers in a gradient; several are compared, and they would take more memory than a step


class PureRuns(Computed):
    """Runs a step that is a function of values on some rows, on one device.

    Attributes:
        before: the layer state; None where predictions are compared.
        weights: the names of the weights whose gradients a run gives.
    """

    def __init__(self, step: Supervised, rows: Nest, what: FirstOf) -> None:
        super().__init__(step, rows, training=what == "train")
        self._what = what
        self.before = None if what == "predict" else _state_by_path(step, self.values.state)
        self.weights = [path(weight) for weight in step.functions.weights] if what == "train" else []

    def both(self) -> tuple[Ran, Ran]:
        """Return what the step comes to on all rows, and on parts of them with the logs that are to be compared."""
        options = self._step.options
        whole, parts = self._run([[self.count], parts_of(self.count)])
        # The parts of an accumulated update are batches to a metric, as in Keras.
        with_metrics = self._step.strategy.num_replicas_in_sync > 1 or options.runs_keras
        names = [name for name in parts.logs if name not in options.unchecked and (with_metrics or is_loss(name))]
        return whole, parts._replace(logs={name: parts.logs[name] for name in names})

    def whole(self, *, nudge: bool = False, other_seeds: bool = False) -> Ran:
        """Return the same on all rows, perhaps with weights of which the last digits are others."""
        eps = nudge_of(self._step.model) if nudge else 0.0
        (whole,) = self._run([[self.count]], state=self.other_seeds if other_seeds else None, nudge=eps)
        return whole

    def _run(
        self, cuts: Sequence[Sequence[int]], *, state: Sequence[tf.Tensor] | None = None, nudge: float = 0.0
    ) -> list[Ran]:
        """Return what the step comes to where the rows are cut into parts of these sizes, for each cut."""
        step, what = self._step, self._what

        def of_cuts(weights: list[tf.Tensor], state: list[tf.Tensor], in_parts: InParts) -> list[Nest]:
            scale = [tf.ones_like(value) for value in self.values.scale]  # the real one may overflow at first
            weights = [nudged(weight, nudge) for weight in weights] if nudge else weights
            values = self.values._replace(weights=weights, state=state, scale=scale)
            if what == "predict":
                return [_outputs(step, values, in_parts, sizes) for sizes in cuts]
            return [_sums(step, what, values, in_parts, sizes) for sizes in cuts]

        found = self(of_cuts, state)
        return [Ran([], {}, {}, one) if what == "predict" else _trained(step, one) for one in found]


def _state_by_path(step: Supervised, state: Sequence[tf.Tensor]) -> dict[str, np.ndarray]:
    """Return the values of the layer state but for seeds."""
    variables = zip(step.trained.non_trainable_variables, state, strict=True)
    return {path(variable): np.asarray(value) for variable, value in variables if not is_seed(variable)}


def _trained(step: Supervised, found: Nest) -> Ran:
    gradients, state, totals = found
    logs = {name: np.asarray(value) for name, value in step.logs(totals).items()}
    if not (step.options.runs_keras and "loss" in logs):
        logs["loss"] = np.asarray(totals[LOSS] / totals[EXAMPLES])
    return Ran([[np.asarray(one) for one in gradients]], _state_by_path(step, state), logs)


def predicted(name: str, count: int) -> str:
    """Return the title of an output, as a message begins."""
    return "What the model predicts" + f" as {name!r}" * bool(name) + f" for {count} rows"


def _outputs(step: Supervised, values: Any, in_parts: InParts, sizes: Sequence[int]) -> dict[str, tf.Tensor]:
    """Return the outputs by their paths, those of all parts one behind the other; refuse those without rows."""

    def of_part(rows: Nest) -> dict[str, tf.Tensor]:
        with value_scope(step.trained, values.weights, values.state):
            outputs = keras.tree.flatten_with_path(step.outputs(rows))
        found = {"/".join(map(str, names)): output for names, output in outputs}
        for name, output in found.items():
            if not tf.is_tensor(output) or output.shape.rank == 0:
                shown = f"the shape {output.shape}" if tf.is_tensor(output) else repr(output)
                raise StepError(
                    f"{predicted(name, sum(sizes))} is {shown}. Every output needs a row for each row of the batch: "
                    "return tensors [rows, ...], or leave it out."
                )
        return found

    parts = in_parts(of_part, sizes)
    return {name: tf.concat([part[name] for part in parts], 0) for name in parts[0]}


def _sums(step: Supervised, what: Pass, values: Changing, in_parts: InParts, sizes: Sequence[int]) -> Nest:
    """Return mean gradients, layer state and totals of all parts."""
    functions, count = step.functions, tf.constant(float(sum(sizes)))
    # A loss over the whole batch has a gradient that goes through what parts gather of each other.
    is_whole = step.is_whole and what == "train"
    minimized: list[tf.Tensor] = []

    def of_part(rows: Nest) -> ShardSums:
        if not is_whole:
            return functions.shard_sums(what, values, rows, _FIRST, count)
        seeded = functions.state.seeded(values.state, _FIRST)
        ran = functions.run("train", values, seeded, rows, _FIRST, count)
        totals = functions.totals.of(ran, ran.scope.share.fraction)
        minimized.append(ran.scope.minimized)
        return ShardSums([], [], functions.state.sums(seeded, ran.state, lambda: totals[EXAMPLES]), totals)

    with tf.GradientTape(watch_accessed_variables=False) as tape:
        if is_whole:
            tape.watch(values.weights)
        found: list[ShardSums] = in_parts(of_part, sizes)
        loss = tf.add_n(minimized) if is_whole else None
    totals = tf.add_n([one.totals for one in found])
    of_parts = [tape.gradient(loss, values.weights)] if is_whole else [one.gradients[0] for one in found]
    sums = [tf.add_n(of_weight) for of_weight in zip(*(small(functions, one) for one in of_parts), strict=True)]
    means = [one / tf.cast(totals[DIVISOR], one.dtype) for one in sums]
    return means, _state(functions, values.state, [one.state for one in found], totals), totals


def _state(
    functions: Functions, before: Sequence[tf.Tensor], shards: Sequence[Sequence[tf.Tensor | None]], totals: tf.Tensor
) -> list[tf.Tensor]:
    """Return the layer state after a pass, from what shards add."""
    sums = [None if of_all[0] is None else tf.add_n(of_all) for of_all in zip(*shards, strict=True)]
    sent = [value for value in sums if value is not None]
    new = functions.state.new_values([value is not None for value in sums], sent, before, totals[EXAMPLES])
    return [old if after is None else after for old, after in zip(before, new, strict=True)]


def small(functions: Functions, gradients: Sequence[Any]) -> list[tf.Tensor]:
    """Return the gradients of all weights as they are compared: large ones in few rows, see `folded`; None as 0."""

    def compared(weight: int, gradient: Any) -> tf.Tensor:
        if gradient is None:
            return tf.zeros([1])
        if isinstance(gradient, SparseGradient):
            gradient = tf.IndexedSlices(gradient.values, gradient.ids)
        if weight in functions.tables:
            return folded(gradient)
        whole = dense(gradient, functions.shapes[weight])
        return folded(whole) if math.prod(whole.shape) > _LARGE else whole

    return [compared(weight, gradient) for weight, gradient in enumerate(gradients)]
