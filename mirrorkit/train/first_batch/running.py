"""A step that is a function of values, run on some rows at once or in parts: gradients, layer state, logs, or outputs.

Parts draw for each row what all rows together draw for it, and gather from each other. In training, layers that are
documented to mix rows are at rest. So nothing that is known to depend on how a batch is cut makes a difference.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from mirrorkit._keras import keras
from mirrorkit._types import Nest
from mirrorkit.errors import StepError
from mirrorkit.recording import RecordedCall, recorded
from mirrorkit.train.ambient import ambient
from mirrorkit.train.first_batch.at_rest import at_rest
from mirrorkit.train.first_batch.compared import Ran, is_loss, nudged
from mirrorkit.train.first_batch.sampled_rows import parts_of, size_of, take
from mirrorkit.train.keras_model.calling import adding_layer, value_scope
from mirrorkit.train.keras_model.layer_state import is_seed, layers_of
from mirrorkit.train.keras_model.row_draws import RowDraws, Shapes
from mirrorkit.train.reduce.sparse_gradient import SparseGradient, folded
from mirrorkit.train.step.facts import Changing, ShardSums
from mirrorkit.train.step.functions import Functions, dense
from mirrorkit.train.step.loop_step import FirstOf, Pass
from mirrorkit.train.step.supervised import Supervised
from mirrorkit.train.totals.totals import DIVISOR, EXAMPLES, LOSS
from mirrorkit.variables import path

InParts = Callable[[Callable[[Nest], Any]], list[Any]]  # of a function of rows: what it gives for each part
_FIRST = np.zeros(2, np.int64)  # the place of the first shard of the first step
_LARGE = 2**20  # numbers in a gradient; several are compared, and they would take more memory than a step
_LONG = 100  # time steps, more of which take longer than a trace


class Noted(NamedTuple):
    """What a pass over the rows of a part does."""

    calls: list[RecordedCall]
    adding: list[Any]  # layers, which add to the loss
    added: list[tf.Tensor]  # what they add


class PureRuns:
    """Runs a step that is a function of values on some rows, on one device.

    Attributes:
        step: the step.
        count: how many rows there are.
        sizes: of the parts.
        before: the layer state; None where predictions are compared.
        weights: the names of the weights whose gradients a run gives.
        all_draws_known: whether each draw so far could be made by rows.
        y_pred: the outputs for all rows, which the first pass gave to Keras's losses; None before.
        notes: of each pass of the last run.
        recording: whether to note the calls of layers, too.
    """

    def __init__(self, step: Supervised, rows: Nest, what: FirstOf) -> None:
        self.step, self._rows, self._what = step, rows, what
        self.count = size_of(rows)
        self.sizes = parts_of(self.count, step.strategy.num_replicas_in_sync)
        self._longest = max(sum(tensor.shape[1:2]) for tensor in tf.nest.flatten(rows))  # sequence, where it is one
        self._values = step.values()
        self._shapes = {tuple(variable.shape) for variable in step.trained.variables}
        self.before = None if what == "predict" else self._state_by_path(self._values.state)
        self.weights = [path(weight) for weight in step.functions.weights] if what == "train" else []
        self.all_draws_known = True
        self.y_pred: Nest = None
        self.notes: list[Noted] = []
        self.recording = False

    def both(self) -> tuple[Ran, Ran]:
        """Return what the step comes to on all rows, and on parts of them with the logs that are to be compared."""
        whole, parts = self._run(self._values, [[self.count], self.sizes])
        # The parts of an accumulated update are batches to a metric, as in Keras.
        with_metrics = self.step.strategy.num_replicas_in_sync > 1 or self.step.options.runs_keras
        unchecked = self.step.options.unchecked
        names = [name for name in parts.logs if name not in unchecked and (with_metrics or is_loss(name))]
        return whole, parts._replace(logs={name: parts.logs[name] for name in names})

    def whole(self, *, nudge: bool = False, other_seeds: bool = False) -> Ran:
        """Return the same on all rows, perhaps with weights of which the last digits are others."""
        values = self._values
        if nudge:
            values = values._replace(weights=nudged(self.step.model, values.weights))
        if other_seeds:
            variables = self.step.trained.non_trainable_variables
            state = [v + 1 if is_seed(one) else v for one, v in zip(variables, values.state, strict=True)]
            values = values._replace(state=state)
        return self._run(values, [[self.count]])[0]

    def _run(self, values: Changing, cuts: Sequence[Sequence[int]]) -> list[Ran]:
        """Return what the step comes to where the rows are cut into parts of these sizes, for each cut; all rows first.

        With many time steps, one operation after the other would take as long for each as for a whole layer, and of a
        placed model all weights would be copied to one device: these are traced, the first but while `recording`.
        """
        step, is_training = self.step, self._what == "train"
        drawn: Shapes = []

        def function(weights: list[tf.Tensor], state: list[tf.Tensor], rows: Nest) -> Nest:
            scale = [tf.ones_like(value) for value in values.scale]  # the real one may overflow at first
            now = values._replace(weights=weights, state=state, scale=scale)
            run = self._outputs if self._what == "predict" else self._sums
            found = [run(now, functools.partial(self._in_parts, rows, sizes, drawn)) for sizes in cuts]
            return found, self.y_pred, [note.added for note in self.notes]

        placed, self.notes = step.on_first, []
        outside = RowDraws(self.count, 0, self.count, [], self._shapes)  # made again where a gradient is taken
        resting = at_rest(step.trained) if is_training else contextlib.nullcontext()
        with ambient.set(draws=outside), resting, self._noting():
            is_long = self._longest > _LONG and any(
                isinstance(one, keras.layers.RNN) for one in layers_of(step.trained)
            )
            if placed or (is_long and not self.recording):
                function = tf.function(placed(function) if placed else function, autograph=False)
            found, self.y_pred, added = function(list(values.weights), list(values.state), self._rows)
        self.notes = [note._replace(added=of_part) for note, of_part in zip(self.notes, added, strict=True)]
        self.all_draws_known &= not outside.seeds
        return [Ran([], {}, {}, one) if self._what == "predict" else self._trained(*one) for one in found]

    @contextlib.contextmanager
    def _noting(self) -> Iterator[None]:
        """Note what Keras's step gives to `compute_loss`, and what layers have added to the loss by then."""
        model = self.step.own.model
        original = model.compute_loss

        def compute_loss(x: Nest, y: Nest, y_pred: Nest, *more: Any, **options: Any) -> tf.Tensor:
            self.y_pred = y_pred if self.y_pred is None else self.y_pred
            for loss in ambient.scope.losses:
                self.notes[-1].adding.append(adding_layer(self.step.trained, loss))
                self.notes[-1].added.append(loss)
            return original(x, y, y_pred, *more, **options)

        if self.step.options.runs_keras:  # which may call it as it likes
            yield
            return
        vars(model)["compute_loss"] = compute_loss  # not by assignment, which Keras would track
        try:
            yield
        finally:
            del vars(model)["compute_loss"]

    def _in_parts(self, rows: Nest, sizes: Sequence[int], drawn: Shapes, of_part: Callable[[Nest], Any]) -> list[Any]:
        """Compute one part after the other; again for each call of `all_gather`, with what the calls before return."""
        known: list[Nest] = []
        noted = len(self.notes)
        while True:
            found: list[Any] = []
            asked: list[Nest] = []
            del self.notes[noted:]
            for number, own in enumerate(sizes):
                first = sum(sizes[:number])
                calls = iter(known)

                def gather(rows: Nest, calls: Iterator[Nest] = calls, asked: list[Nest] = asked) -> Nest:
                    for whole in calls:
                        return whole
                    asked.append(rows)
                    raise _NotKnown

                draws = RowDraws(own, first, self.count, drawn, self._shapes)
                with contextlib.ExitStack() as stack:
                    stack.enter_context(contextlib.suppress(_NotKnown))
                    stack.enter_context(ambient.set(gather=gather, draws=draws))
                    self.notes.append(Noted(stack.enter_context(recorded()) if self.recording else [], [], []))
                    found.append(of_part(take(rows, list(range(first, first + own)))))
                    self.all_draws_known &= draws.all_are_known
            if not asked:
                return found
            if found:
                raise StepError("The number of calls of mk.train.all_gather must not depend on the number of rows.")
            known.append(tf.nest.map_structure(lambda *parts: tf.concat(parts, axis=0), *asked))

    def _state_by_path(self, state: Sequence[tf.Tensor]) -> dict[str, np.ndarray]:
        """Return the values of the layer state but for seeds."""
        variables = zip(self.step.trained.non_trainable_variables, state, strict=True)
        return {path(variable): np.asarray(value) for variable, value in variables if not is_seed(variable)}

    def _trained(self, gradients: list[tf.Tensor], state: list[tf.Tensor], totals: tf.Tensor) -> Ran:
        logs = {name: np.asarray(value) for name, value in self.step.logs(totals).items()}
        if not (self.step.options.runs_keras and "loss" in logs):
            logs["loss"] = np.asarray(totals[LOSS] / totals[EXAMPLES])
        return Ran([[np.asarray(one) for one in gradients]], self._state_by_path(state), logs)

    def _outputs(self, values: Changing, in_parts: InParts) -> dict[str, tf.Tensor]:
        """Return the outputs by their paths, those of all parts one behind the other; refuse those without rows."""
        step = self.step

        def of_part(rows: Nest) -> dict[str, tf.Tensor]:
            with value_scope(step.trained, values.weights, values.state):
                outputs = keras.tree.flatten_with_path(step.outputs(rows))
            found = {"/".join(map(str, names)): output for names, output in outputs}
            for name, output in found.items():
                if not tf.is_tensor(output) or output.shape.rank == 0:
                    shown = f"the shape {output.shape}" if tf.is_tensor(output) else repr(output)
                    raise StepError(
                        f"{predicted(name, size_of(rows))} is {shown}. Every output needs a row for each row of the "
                        "batch: return tensors [rows, ...], or leave it out."
                    )
            return found

        parts = in_parts(of_part)
        return {name: tf.concat([part[name] for part in parts], 0) for name in parts[0]}

    def _sums(self, values: Changing, in_parts: InParts) -> Nest:
        """Return mean gradients, layer state and totals of all parts."""
        functions, count = self.step.functions, tf.constant(float(self.count))
        # A loss over the whole batch has a gradient that goes through what parts gather of each other.
        what: Pass = "train" if self._what == "train" else "test"
        is_whole = self.step.is_whole and what == "train"
        minimized: list[tf.Tensor] = []

        def of_part(rows: Nest) -> ShardSums:
            if not is_whole:
                sums = functions.shard_sums(what, values, rows, _FIRST, count)
                return sums._replace(gradients=[small(functions, sums.gradients[0])])
            seeded = functions.state.seeded(values.state, _FIRST)
            ran = functions.run("train", values, seeded, rows, _FIRST, count)
            totals = functions.totals.of(ran, ran.scope.share.fraction)
            minimized.append(ran.scope.minimized)
            return ShardSums([], [], functions.state.sums(seeded, ran.state, totals[EXAMPLES]), totals)

        with tf.GradientTape(watch_accessed_variables=False) as tape:
            if is_whole:
                tape.watch(values.weights)
            found: list[ShardSums] = in_parts(of_part)
            loss = tf.add_n(minimized) if is_whole else None
        totals = tf.add_n([one.totals for one in found])
        of_parts = (
            [small(functions, tape.gradient(loss, values.weights))] if is_whole else [one.gradients[0] for one in found]
        )
        sums = [tf.add_n(gradients) for gradients in zip(*of_parts, strict=True)]
        means = [one / tf.cast(totals[DIVISOR], one.dtype) for one in sums]
        return means, _state(functions, values.state, [one.state for one in found], totals), totals


class _NotKnown(BaseException):
    """What all parts gather is not known yet; no `Exception`, which Keras would catch and raise as another one."""


def predicted(name: str, count: int) -> str:
    """Return the title of an output, as a message begins."""
    return "What the model predicts" + f" as {name!r}" * bool(name) + f" for {count} rows"


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
