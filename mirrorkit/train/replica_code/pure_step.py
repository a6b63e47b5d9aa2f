"""A model's own `train_step` and `test_step` as functions of values: weights, layer state, states of metrics."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import tensorflow as tf

from mirrorkit._keras import keras
from mirrorkit._types import KerasModel, KerasVariable, Nest
from mirrorkit.errors import StepError
from mirrorkit.train.keras_model.inlining import functions_inlined
from mirrorkit.train.keras_model.kept import kept_by
from mirrorkit.train.keras_model.keras_operations import without_waits
from mirrorkit.train.keras_model.layer_state import layers_of
from mirrorkit.train.keras_model.row_draws import row_draws
from mirrorkit.train.keras_model.seeds import seeds_on_host
from mirrorkit.train.reduce.gathering import gathering, gathers_within
from mirrorkit.train.reduce.one_replica import one_replica
from mirrorkit.train.reduce.switching import keeping
from mirrorkit.train.replica_code.draws import wrap_draws
from mirrorkit.train.replica_code.keras_calls import wrap_keras
from mirrorkit.train.replica_code.pure_scope import PureScope
from mirrorkit.train.replica_code.scope import Share, within
from mirrorkit.train.replica_code.step_function import as_keras, checked_logs, step_of


class Values(NamedTuple):
    """What a step reads: values of the trainable and non-trainable variables, and of `metric_variables`."""

    weights: Sequence[tf.Tensor]
    state: Sequence[tf.Tensor]
    metrics: Sequence[tf.Tensor]


class Ran(NamedTuple):
    """What a step comes to on one replica's rows."""

    gradients: list[Any]  # of the mean over the rows, one for each trainable variable; None where there is none
    state: list[tf.Tensor]  # the same tensor where nothing was assigned
    metrics: list[tf.Tensor]
    logs: Mapping[str, tf.Tensor]
    scope: PureScope


def metric_variables(model: KerasModel) -> list[KerasVariable]:
    """Return those of the metrics that Keras resets and reads: the model's, also where it hides those of `compile`."""
    metrics = [*keras.Model.metrics.fget(model), *model.metrics]
    variables = itertools.chain(*(metric.variables for metric in metrics))
    return list({id(variable): variable for variable in variables}.values())


def run_pure(
    model: KerasModel, what: str, values: Values, batch: Nest, share: Share, scale: tf.Tensor | None = None
) -> Ran:
    """Run a model's own step on a replica's rows, with these values in place of its variables."""
    wrap_keras()
    wrap_draws()
    variables = metric_variables(model)
    weights = list(zip(model.trainable_variables, values.weights, strict=True))
    others = [
        *zip(model.non_trainable_variables, values.state, strict=True),
        *zip(variables, values.metrics, strict=True),
    ]
    step, gather = step_of(model, what), gathers_within() if row_draws() else None
    scope = PureScope(share, weights, others, scale=scale, gather=gather)
    with _around(model, scope), scope, within(scope):
        logs = checked_logs(step(as_keras(batch)), step)
    values_after = dict(scope.state_mapping)

    def after(variable: KerasVariable, before: tf.Tensor) -> tf.Tensor:
        value = values_after[id(variable)]
        return before if value is before else tf.ensure_shape(value, variable.shape)

    given: dict[int, Any] = {}
    if scope.applied is not None:
        given = dict(zip(map(id, scope.applied.variables), scope.applied.gradients, strict=True))
    state = [after(variable, value) for variable, value in others]
    return Ran(
        [given.get(id(variable)) for variable in model.trainable_variables],
        state[: len(values.state)],
        state[len(values.state) :],
        logs,
        scope,
    )


@contextmanager
def _around(model: KerasModel, scope: PureScope) -> Iterator[None]:
    """What surrounds a pass through a model, whoever calls it."""
    with (
        one_replica(summaries=scope.summaries),
        seeds_on_host(),
        without_waits(totals=scope.share.totals()),
        functions_inlined(),
        keeping(kept_by(layers_of(model))),
        gathering(no_gather),
    ):
        yield


def no_gather(rows: Nest) -> Nest:
    """Do what `mk.train.all_gather` does in a model's own step."""
    raise StepError(
        "mk.train.all_gather was called in a model's own train_step, whose gradients are averaged over the replicas: "
        "what other replicas say of a row would not arrive at it. For a loss over the whole batch use "
        "Step.from_loss(model, optimizer, loss_fn, whole_batch=True)."
    )
