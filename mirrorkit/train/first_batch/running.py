"""A step that is a function of values, run on some rows in parts: mean gradients, layer state, logs, or outputs."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
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
from mirrorkit.train.step.changing import dense
from mirrorkit.train.step.facts import ShardSums
from mirrorkit.train.step.functions import Functions
from mirrorkit.train.step.loop_step import FirstOf, Pass
from mirrorkit.train.step.supervised import Supervised
from mirrorkit.train.totals.totals import DIVISOR, EXAMPLES, LOSS
from mirrorkit.variables import path

_FIRST = np.zeros(2, np.int64)  # the place of the first shard of the first step
_LARGE = 2**20  # numbers in a gradient; several are compared, and they would take more memory than a step


class PureRuns:
    """Runs a step that is a function of values on some rows, on one device.

    Attributes:
        before: the layer state; None where predictions are compared.
        all_draws_known: whether each draw so far could be made by rows; otherwise other seeds may give other results.
        weights: the names of the weights that have gradients; after a run.
    """

    def __init__(self, step: Supervised, rows: Nest, what: FirstOf) -> None:
        self._step, self._what = step, what
        self._computed = Computed(step, rows, training=what == "train")
        self.before = None if what == "predict" else _state_by_path(step, self._computed.values.state)

    @property
    def all_draws_known(self) -> bool:
        """See above."""
        return self._computed.all_draws_known

    @property
    def weights(self) -> list[str]:
        """See above."""
        return [path(weight) for weight in self._step.functions.weights_with_gradient] if self._what == "train" else []

    def both(self) -> tuple[Ran, Ran]:
        """Return what the step comes to on all rows, and on parts of them with the logs that are to be compared."""
        count, options = self._computed.count, self._step.options
        whole, parts = self._run([[count], parts_of(count)])
        # The parts of an accumulated update are batches to a metric, as in Keras.
        with_metrics = self._step.strategy.num_replicas_in_sync > 1 or options.runs_keras
        names = [name for name in parts.logs if name not in options.unchecked and (with_metrics or is_loss(name))]
        return whole, parts._replace(logs={name: parts.logs[name] for name in names})

    def whole(self, *, nudge: bool = False, other_seeds: bool = False) -> Ran:
        """Return the same on all rows, perhaps with weights of which the last digits are others."""
        state = self._computed.other_seeds if other_seeds else None
        (whole,) = self._run([[self._computed.count]], state=state, nudge=nudge_of(self._step.model) if nudge else 0.0)
        return whole

    def _run(
        self, cuts: Sequence[Sequence[int]], *, state: Sequence[tf.Tensor] | None = None, nudge: float = 0.0
    ) -> list[Ran]:
        """Return what the step comes to where the rows are cut into parts of these sizes, for each cut."""
        step, what, computed = self._step, self._what, self._computed
        functions, total = step.functions, tf.constant(float(computed.count))

        def of_cuts(weights: list[tf.Tensor], state: list[tf.Tensor], in_parts: InParts) -> list[Nest]:
            scale = [tf.ones_like(value) for value in computed.values.scale]  # the real one may overflow at first
            weights = [nudged(weight, nudge) for weight in weights] if nudge else weights
            values = computed.values._replace(weights=weights, state=state, scale=scale)
            if what == "predict":
                return [_outputs(step, values, in_parts, sizes) for sizes in cuts]
            compute = _whole if what == "train" and step.is_whole else functools.partial(_sums, what)
            return [compute(functions, values, in_parts, sizes, total) for sizes in cuts]

        as_ran = (
            functools.partial(_predicted, computed.count) if what == "predict" else functools.partial(_trained, step)
        )
        return [as_ran(one) for one in computed(of_cuts, state)]


def _state_by_path(step: Supervised, state: Sequence[tf.Tensor]) -> dict[str, np.ndarray]:
    """Return the values of the layer state but for seeds."""
    variables = zip(step.trained.non_trainable_variables, state, strict=True)
    return {path(variable): np.asarray(value) for variable, value in variables if not is_seed(variable)}


def _trained(step: Supervised, found: Nest) -> Ran:
    gradients, state, totals = found
    logs = {name: np.asarray(value) for name, value in step.logs(totals).items()}
    logs.setdefault("loss", np.asarray(totals[LOSS] / totals[EXAMPLES]))
    return Ran([[np.asarray(one) for one in gradients]], _state_by_path(step, state), logs)


def _predicted(count: int, parts: list[Nest]) -> Ran:
    """Put outputs one behind the other; refuse those without rows."""
    by_path: dict[str, list[Any]] = {}
    for outputs in parts:
        for names, output in keras.tree.flatten_with_path(outputs):
            name = "/".join(map(str, names))
            if not tf.is_tensor(output) or output.shape.rank == 0:
                found = f"the shape {output.shape}" if tf.is_tensor(output) else repr(output)
                raise StepError(
                    f"{predicted(name, count)} is {found}. Every output needs a row for each row of the batch: return "
                    "tensors [rows, ...], or leave it out."
                )
            by_path.setdefault(name, []).append(np.asarray(output))
    return Ran([], {}, {}, {name: np.concatenate(outputs) for name, outputs in by_path.items()})


def predicted(name: str, count: int) -> str:
    """Return the title of an output, as a message begins."""
    return "What the model predicts" + f" as {name!r}" * bool(name) + f" for {count} rows"


def _outputs(step: Supervised, values: Any, in_parts: InParts, sizes: Sequence[int]) -> list[Nest]:
    def of_part(rows: Nest) -> Nest:
        with value_scope(step.trained, values.weights, values.state):
            return step.outputs(rows)

    return in_parts(of_part, sizes)


def _sums(
    what: Pass, functions: Functions, values: Any, in_parts: InParts, sizes: Sequence[int], total: tf.Tensor
) -> Nest:
    """Return gradients, layer state and totals of all parts."""
    found: list[ShardSums] = in_parts(lambda rows: functions.shard_sums(what, values, rows, _FIRST, total), sizes)
    totals = tf.add_n([one.totals for one in found])
    of_parts = [_dense(functions, one.gradients[0]) for one in found]
    sums = [tf.add_n(of_weight) for of_weight in zip(*of_parts, strict=True)]
    return _means(sums, totals), _state(functions, values.state, [one.state for one in found], totals), totals


def _whole(functions: Functions, values: Any, in_parts: InParts, sizes: Sequence[int], total: tf.Tensor) -> Nest:
    """Return the same of a loss over the whole batch, whose gradient goes through what parts gather of each other."""
    seeded = functions.state.seeded(values.state, _FIRST)

    def of_part(rows: Nest) -> Any:
        ran = functions.run("train", values, seeded, rows, _FIRST, total)
        return ran, functions.totals.of(ran, ran.scope.share.fraction)

    with tf.GradientTape() as tape:
        tape.watch(values.weights)
        found = in_parts(of_part, sizes)
        totals = tf.add_n([of_part for _, of_part in found])
        loss = tf.add_n([ran.scope.minimized for ran, _ in found])
    means = _means(_dense(functions, tape.gradient(loss, values.weights)), totals)
    state = [functions.state.sums(seeded, ran.state, functools.partial(_examples, own)) for ran, own in found]
    return means, _state(functions, values.state, state, totals), totals


def _means(sums: Sequence[tf.Tensor], totals: tf.Tensor) -> list[tf.Tensor]:
    return [one / tf.cast(totals[DIVISOR], one.dtype) for one in sums]


def _examples(totals: tf.Tensor) -> tf.Tensor:
    return totals[EXAMPLES]


def _state(
    functions: Functions, before: Sequence[tf.Tensor], shards: Sequence[Sequence[tf.Tensor | None]], totals: tf.Tensor
) -> list[tf.Tensor]:
    """Return the layer state after a pass, from what shards add."""
    sums = [None if of_all[0] is None else tf.add_n(of_all) for of_all in zip(*shards, strict=True)]
    sent = [value for value in sums if value is not None]
    new = functions.state.new_values([value is not None for value in sums], sent, before, totals[EXAMPLES])
    return [old if after is None else after for old, after in zip(before, new, strict=True)]


def _dense(functions: Functions, gradients: Sequence[Any]) -> list[tf.Tensor]:
    """Return gradients as they are compared, but for those that are None."""
    of_weights = [
        tf.IndexedSlices(one.values, one.ids) if isinstance(one, SparseGradient) else one for one in gradients
    ]
    return [one for one in small(functions, enumerate(of_weights)) if one is not None]


def small(
    functions: Functions, gradients: Iterable[tuple[int, tf.Tensor | tf.IndexedSlices | None]]
) -> list[tf.Tensor | None]:
    """Return gradients, each with the number of its weight; large ones in few rows, see `folded`."""

    def compared(weight: int, gradient: tf.Tensor | tf.IndexedSlices) -> tf.Tensor:
        shape = functions.shapes[weight]
        if weight in functions.tables:  # it may be by rows in one computation, and dense in the other
            return folded(gradient)
        return folded(dense(gradient, shape)) if math.prod(shape) > _LARGE else dense(gradient, shape)

    return [None if gradient is None else compared(i, gradient) for i, gradient in gradients]
