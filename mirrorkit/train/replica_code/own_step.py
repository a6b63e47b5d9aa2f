"""Which models' own steps are functions of values, with one update at the end: found by a trace of the step."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from mirrorkit import private
from mirrorkit._keras import keras
from mirrorkit._types import Batch, KerasModel, KerasOptimizer, KerasVariable, Nest, Spec
from mirrorkit.optim import trainable_variables
from mirrorkit.train.ambient import ambient
from mirrorkit.train.keras_model.attributes import attributes_kept, changed_attributes, written_attributes
from mirrorkit.train.keras_model.calling import placeholders, read, running
from mirrorkit.train.keras_model.layer_state import is_generator, overrides, some_follow
from mirrorkit.train.reduce.gathering import Gather
from mirrorkit.train.reduce.tracing import foreign_state, numbers_by_row, outside_replica, writes
from mirrorkit.train.replica_code.pure_step import NotAFunction, PureScope, Ran, Share, Values, metric_variables
from mirrorkit.train.replica_code.replaced import require_repeatable
from mirrorkit.train.replica_code.step_function import as_keras, flat_logs, named_logs, step_of
from mirrorkit.variables import copies, path

_LINEAR = ("AddV2", "Add", "AddN", "Identity", "StopGradient", "EnsureShape")


@dataclass(eq=False)
class OwnStep:
    """A model's `train_step` and `test_step`, as functions of values.

    Args:
        model: the model, built.
        replicas: how many there are.
        gather: what `mk.train.all_gather` does in a step; None for what it does around it.
        measure: creates the metrics for data, of which it gets the specs; returns the variables that losses read.
        by_user: whether it is a user who wrote the steps, and not Keras.
        separates: see `PureScope`.
    """

    model: KerasModel
    replicas: int
    gather: Gather | None = None
    measure: Callable[[Spec], Sequence[tf.Variable]] = lambda data: ()
    by_user: bool = True
    separates: bool = False
    _found: dict[str, Found] = field(default_factory=dict)

    def run(
        self,
        what: str,
        values: Values,
        data: Nest,
        share: Share,
        *,
        scale: tf.Tensor | None = None,
        is_part: bool = False,
        differentiates: bool = True,
    ) -> Ran:
        """Run a step with these values in place of the model's variables.

        Args:
            what: "train" or "test".
            values: of the variables.
            data: what the step is given: one replica's rows.
            share: what these are of the batch.
            scale, is_part, differentiates: see `PureScope`.
        """
        model, step = self.model, step_of(self.model, what)
        weights = list(zip(model.trainable_variables, values.weights, strict=True))
        others = [
            *zip(model.non_trainable_variables, values.state, strict=True),
            *zip(metric_variables(model), values.metrics, strict=True),
        ]
        scope = PureScope(
            share,
            weights,
            others,
            scale=scale,
            is_part=is_part,
            gather=ambient.gather if ambient.draws else None,
            separates=self.separates and not (tf.executing_eagerly() or ambient.draws),
            by_user=self.by_user,
            differentiates=differentiates,
        )
        # A summary keeps a user's step from being a function; of a layer's, a warning tells.
        summaries = scope.summaries if self.by_user else None
        totals, gather = None if is_part else share.totals(), self.gather or ambient.gather
        # One trace serves all replicas: they draw by the seeds that they are given.
        with running(model, scope, scope=scope, gather=gather, summaries=summaries, totals=totals, numbers=None):
            logs = named_logs(step(data), step)

        def after(variable: KerasVariable, before: tf.Tensor) -> tf.Tensor:
            value = scope.state_mapping[id(variable)]
            return before if value is before else tf.ensure_shape(value, variable.shape)

        given = {} if scope.applied is None else scope.applied.gradients
        gradients = [given.get(id(variable)) for variable in model.trainable_variables]
        state = [after(variable, value) for variable, value in others]
        return Ran(gradients, state[: len(values.state)], state[len(values.state) :], logs, scope)

    def found(self, what: str, data: Batch) -> Found:
        """Return what a trace for data like this finds out; raises `NotAFunction`."""
        spec = tf.nest.map_structure(_any_rows, data)
        key = f"{what} {spec}"
        if key not in self._found:
            with attributes_kept([self.model]):
                self._found[key] = outside_replica(lambda: self._traced(what, spec))
        return self._found[key]

    def _traced(self, what: str, spec: Spec) -> Found:
        """Trace a step of a built model as a function of values; raises `NotAFunction` where it is none.

        It is one where it makes one update, after which it reads no weight; where it writes layer state and metrics
        alone; where it adds to the states of metrics, which it reads for its logs alone; and where it logs what the
        metrics say.
        """
        model, known = self.model, set(map(id, self.measure(spec)))
        graph = private.get("__internal__.FuncGraph")(f"step_to_{what}")
        before = written_attributes(model)
        with graph.as_default():
            groups = (model.trainable_variables, model.non_trainable_variables, metric_variables(model))
            values = Values(*map(placeholders, groups))
            count = tf.constant(1.0)
            share = Share(0, self.replicas, count, count, 1.0, lambda: tf.zeros([2], tf.int64))
            try:
                with tf.GradientTape() as tape:
                    ran = self.run(what, values, placeholders(spec), share, differentiates=self.by_user)
            except Exception as error:  # the user's own, or of what takes real variables
                text = str(error).partition("\n")[0]
                why = f"it raised {type(error).__name__} as a function of values: {text}"
                raise NotAFunction(why, of_data=True) from error
            foreign = [variable for variable in tape.watched_variables() if id(variable) not in known]
            with ran.scope:
                reported = flat_logs(model.get_metrics_result())
            _require_one_update(model, what, ran)
            _require_own_variables(model, values, ran, graph, foreign)
            _require_sums(model, values, ran)
            if self.replicas > 1 and self.by_user:  # for Keras's own step, parts of a batch are compared with all of it
                _require_not_read_again(model, ran)
        _require_zeros(model)
        require_repeatable(graph)
        if reported.keys() != ran.logs.keys():
            raise NotAFunction(f"it logs {sorted(ran.logs)}, and the metrics are {sorted(reported)}")
        if ran.scope.means and overrides(model, "train_step"):
            raise NotAFunction("it takes a mean over what a mask or weights leave, and several batches make an update")
        if self.by_user and (changed := changed_attributes(model, before)):
            raise NotAFunction(f"it changes the Python attributes {changed}")
        optimizer = None if ran.scope.applied is None else ran.scope.applied.optimizer
        return Found(optimizer, ran.scope.asks and self.replicas > 1, numbers_by_row(graph, None))

    def predict(self, rows: Batch) -> Nest:
        """Return what the model's `predict_step` does."""
        with running(self.model):
            return read(self.model.predict_step(as_keras(rows)))


def _any_rows(one: tf.Tensor | tf.TypeSpec) -> tf.TensorSpec:
    is_dense = isinstance(one, tf.TensorSpec) or not isinstance(one, (tf.TypeSpec, tf.RaggedTensor, tf.SparseTensor))
    if not is_dense or tf.TensorShape(one.shape).rank in (None, 0):
        raise NotAFunction("its data is not dense, or does not tell its rank")
    return tf.TensorSpec([None, *one.shape[1:]], one.dtype)


class Found(NamedTuple):
    """What a trace of a step has found out."""

    optimizer: KerasOptimizer | None  # which makes the update, where it trains
    asks: bool  # whether replicas have to ask each other for the divisor of a mean
    numbers: int  # that its tensors hold for each row


def _tensors(nest: Nest) -> list[tf.Tensor]:
    return [one for one in tf.nest.flatten(nest, expand_composites=True) if tf.is_tensor(one)]


# Each of these raises `NotAFunction` where a step, as it was traced, is more than a function of its values.


def _require_one_update(model: KerasModel, what: str, ran: Ran) -> None:
    applied = ran.scope.applied
    if what == "train" and applied is None:
        raise NotAFunction("it makes no update by an optimizer's apply")
    if applied is not None and all(gradient is None for gradient in applied.gradients.values()):
        raise NotAFunction("it gives the optimizer no gradient")
    if what == "test" and applied is not None:
        raise NotAFunction("it makes an update")
    if ran.scope.by_user and applied is not None and applied.optimizer.built:
        trained = [id(v) for v in trainable_variables(getattr(applied.optimizer, "inner_optimizer", applied.optimizer))]
        if trained != [id(variable) for variable in model.trainable_variables]:
            raise NotAFunction("its optimizer is built for other weights than those of the model")


def _require_own_variables(
    model: KerasModel,
    values: Values,
    ran: Ran,
    graph: tf.Graph,
    trained: Sequence[tf.Variable],
) -> None:
    if foreign := ran.scope.assigned_but([*model.variables, *metric_variables(model)]):
        why = foreign_state([f"the Keras variable {path!r}, which a call assigns" for path in foreign])
        raise NotAFunction(f"it assigns {foreign[0]!r}, which is not among the model's variables") from why
    if ran.scope.by_user and ran.scope.applied is not None:
        used = {id(outer) for outer, _ in graph.captures}  # whichever replica's copy it is
        changed = [v for v in ran.scope.applied.optimizer.variables if used & {id(copy.handle) for copy in copies(v)}]
        if changed:
            raise NotAFunction(f"it reads {path(changed[0])!r}, which the update changes")
    if trained:
        names = [variable.name for variable in trained]
        raise NotAFunction(f"it reads {names[0]!r}, which is not among the model's own") from foreign_state(names)
    if written := writes(graph):  # what it only reads, as a loss may whose weight a callback sets, it reads each time
        why = foreign_state([f"a variable that it writes ({kind})" for kind in written])
        raise NotAFunction("it writes a variable that is not among the model's own") from why
    # A value that was taken before the update is that of a variable in Keras, so the new one.
    late = set() if ran.scope.applied is None else set(graph.get_operations()[ran.scope.at_update :])
    if any(late & set(weight.consumers()) for weight in values.weights):
        raise NotAFunction("it uses the value of a weight after the update")


def _require_sums(model: KerasModel, values: Values, ran: Ran) -> None:
    if some_follow(_tensors([ran.gradients, ran.scope.minimized, ran.state]), values.metrics):
        raise NotAFunction("it computes with what a metric has counted")
    for variable, old, new in zip(metric_variables(model), values.metrics, ran.metrics, strict=True):
        if not _adds_to(new, old, values.metrics):
            raise NotAFunction(f"it does more to {variable.path!r} than to add to it")


def _adds_to(new: tf.Tensor, old: tf.Tensor, states: Sequence[tf.Tensor]) -> bool:
    """Return whether, in a graph, a value is another one and something that follows from no state, added up."""
    if new is old:
        return True
    if new.op.type not in _LINEAR:
        return False
    following = [one for one in new.op.inputs if some_follow([one], states)]
    return len(following) == 1 and _adds_to(following[0], old, states)


def _require_zeros(model: KerasModel) -> None:
    """A metric that Keras resets is to begin an epoch with zeros."""
    variables = itertools.chain(*(metric.variables for metric in model.metrics))
    ones = [(variable, tf.ones(variable.shape, variable.dtype)) for variable in variables]
    with keras.StatelessScope(state_mapping=ones) as scope:
        model.reset_metrics()
    for variable, _ in ones:
        if np.any(scope.get_current_value(variable)):
            raise NotAFunction(f"its metrics do not begin an epoch with {variable.path!r} at 0")


def _require_not_read_again(model: KerasModel, ran: Ran) -> None:
    """Nothing is to follow from state that was assigned before, but for its own next value: BatchNormalization twice.

    Elsewhere each replica's own value would be read, where the step of one device has that of all rows.
    """
    state = list(zip(model.non_trainable_variables, ran.state, strict=True))
    for variable, value in ran.scope.assigned:
        others = [new for other, new in state if other is not variable]
        is_state = any(other is variable for other, _ in state) and not is_generator(variable)
        # What `OwnStep.run` itself made of the last value is no use of it.
        is_read = tf.is_tensor(value) and any(op.type != "EnsureShape" for op in value.consumers())
        if is_state and is_read and some_follow(_tensors([ran.gradients, ran.metrics, others]), [value]):
            raise NotAFunction(f"it computes with {variable.path!r} after it was assigned")
