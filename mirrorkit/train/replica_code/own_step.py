"""Which models' own steps are functions of values, with one update at the end: found by a trace of the step."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from mirrorkit import private
from mirrorkit._keras import keras
from mirrorkit._types import Batch, KerasModel, KerasOptimizer, Nest, Spec
from mirrorkit.optim import trainable_variables
from mirrorkit.train.keras_model.attributes import attributes_kept, changed_attributes, written_attributes
from mirrorkit.train.keras_model.calling import predicting, read
from mirrorkit.train.keras_model.layer_state import some_follow
from mirrorkit.train.reduce.tracing import outside_replica
from mirrorkit.train.replica_code.draws import require_repeatable
from mirrorkit.train.replica_code.pure_scope import NotAFunction
from mirrorkit.train.replica_code.pure_step import Ran, Values, metric_variables, run_pure
from mirrorkit.train.replica_code.scope import Share
from mirrorkit.train.replica_code.step_function import as_keras, flat_logs

_LINEAR = ("AddV2", "Add", "AddN", "Identity", "StopGradient", "EnsureShape")


class OwnStep:
    """A model's own `train_step` and `test_step`, as functions of values.

    Args:
        model: the model, built.
        replicas: how many there are.
    """

    def __init__(self, model: KerasModel, replicas: int) -> None:
        self.model = model
        self.replicas = replicas
        self._found: dict[str, Found] = {}

    def found(self, what: str, batch: Batch) -> Found:
        """Return what a trace for batches like this one finds out; raises `NotAFunction`."""
        spec = tf.nest.map_structure(_any_rows, batch)
        key = f"{what} {spec}"
        if key not in self._found:
            with attributes_kept([self.model]):
                self._found[key] = outside_replica(lambda: found_as_function(self.model, what, spec, self.replicas))
        return self._found[key]

    def predict(self, rows: Batch) -> Nest:
        """Return what the model's `predict_step` does."""
        return predicting(lambda: read(self.model.predict_step(as_keras(rows))))


def _any_rows(one: tf.Tensor | tf.TypeSpec) -> tf.TensorSpec:
    is_dense = isinstance(one, tf.TensorSpec) or not isinstance(one, (tf.TypeSpec, tf.RaggedTensor, tf.SparseTensor))
    if not is_dense or tf.TensorShape(one.shape).rank in (None, 0):
        raise NotAFunction("its data is not dense, or does not tell its rank")
    return tf.TensorSpec([None, *one.shape[1:]], one.dtype)


class Found(NamedTuple):
    """What a trace of a step has found out."""

    optimizer: KerasOptimizer | None  # which makes the update, where it trains
    asks: bool  # whether replicas have to ask each other for the divisor of a mean


def found_as_function(model: KerasModel, what: str, element_spec: Spec, replicas: int) -> Found:
    """Trace a step of a built model as a function of values; raises `NotAFunction` where it is none.

    It is one where it makes one update, after which it reads no weight; where it writes layer state and metrics alone;
    where it adds to the states of metrics, which it reads for its logs alone; and where it logs what the metrics say.
    """
    graph = private.get("__internal__.FuncGraph")(f"step_to_{what}")
    before = written_attributes(model)
    with graph.as_default():
        groups = (model.trainable_variables, model.non_trainable_variables, metric_variables(model))
        values = Values(*map(_placeholders, groups))
        count = tf.constant(1.0)
        share = Share(0, replicas, count, count, 1.0, lambda: tf.zeros([2], tf.int64))
        try:
            ran = run_pure(model, what, values, _placeholders(element_spec), share)
        except Exception as error:  # the user's own, or of what takes real variables
            text = str(error).partition("\n")[0]
            why = f"it raised {type(error).__name__} as a function of values: {text}"
            raise NotAFunction(why, of_data=True) from error
        with ran.scope:
            reported = flat_logs(model.get_metrics_result())
        _require_one_update(model, what, ran)
        _require_own_variables(model, values, ran, graph)
        _require_sums(model, values, ran)
        if replicas > 1:
            _require_not_read_again(model, ran)
    _require_zeros(model)
    require_repeatable(graph)
    if reported.keys() != ran.logs.keys():
        raise NotAFunction(f"it logs {sorted(ran.logs)}, and the metrics are {sorted(reported)}")
    if changed := changed_attributes(model, before):
        raise NotAFunction(f"it changes the Python attributes {changed}")
    return Found(None if ran.scope.applied is None else ran.scope.applied.optimizer, ran.scope.asks)


def _placeholders(like: Nest) -> Nest:
    return tf.nest.map_structure(lambda one: tf.compat.v1.placeholder(one.dtype, one.shape), like)


def _tensors(nest: Nest) -> list[tf.Tensor]:
    return [one for one in tf.nest.flatten(nest, expand_composites=True) if tf.is_tensor(one)]


# Each of these raises `NotAFunction` where a step, as it was traced, is more than a function of its values.


def _require_one_update(model: KerasModel, what: str, ran: Ran) -> None:
    applied = ran.scope.applied
    if what == "train" and applied is None:
        raise NotAFunction("it makes no update by an optimizer's apply")
    if applied is not None and all(gradient is None for gradient in applied.gradients):
        raise NotAFunction("it gives the optimizer no gradient")
    if what == "test" and applied is not None:
        raise NotAFunction("it makes an update")
    if applied is not None and applied.optimizer.built:
        trained = [id(v) for v in trainable_variables(getattr(applied.optimizer, "inner_optimizer", applied.optimizer))]
        if trained != [id(variable) for variable in model.trainable_variables]:
            raise NotAFunction("its optimizer is built for other weights than those of the model")


def _require_own_variables(model: KerasModel, values: Values, ran: Ran, graph: tf.Graph) -> None:
    known = {id(v) for v in [*model.variables, *metric_variables(model)]}
    if foreign := [path for key, path in ran.scope.paths.items() if key not in known]:
        raise NotAFunction(f"it assigns {foreign[0]!r}, which is not among the model's variables")
    if any(outer.dtype == tf.resource for outer, _ in graph.captures):
        raise NotAFunction("it reads or writes a variable that is not among the model's own")
    # A value that was taken before the update is that of a variable in Keras, so the new one.
    late = set() if ran.scope.applied is None else set(graph.get_operations()[ran.scope.at_update :])
    if any(late & set(weight.consumers()) for weight in values.weights):
        raise NotAFunction("it uses the value of a weight after the update")


def _require_sums(model: KerasModel, values: Values, ran: Ran) -> None:
    if some_follow(_tensors([ran.gradients, ran.state]), values.metrics):
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
        is_state = any(other is variable for other, _ in state)
        # What `run_pure` itself made of the last value is no use of it.
        is_read = tf.is_tensor(value) and any(op.type != "EnsureShape" for op in value.consumers())
        if is_state and is_read and some_follow(_tensors([ran.gradients, ran.metrics, others]), [value]):
            raise NotAFunction(f"it computes with {variable.path!r} after it was assigned")
