"""A model's own `train_step` and `test_step` as functions of values: weights, layer state, states of metrics."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from mirrorkit.train.reduce.gathering import Gather, gathering, gathers_within
from mirrorkit.train.reduce.one_replica import one_replica
from mirrorkit.train.reduce.switching import keeping
from mirrorkit.train.replica_code.draws import wrap_draws
from mirrorkit.train.replica_code.keras_calls import wrap_keras
from mirrorkit.train.replica_code.pure_scope import PureScope
from mirrorkit.train.replica_code.scope import Share, within
from mirrorkit.train.replica_code.step_function import named_logs


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
    model: KerasModel,
    step: Callable[..., Any],
    values: Values,
    data: Nest,
    share: Share,
    *,
    gather: Gather,
    scale: tf.Tensor | None = None,
    is_part: bool = False,
    separates: bool = False,
    by_user: bool = False,
) -> Ran:
    """Run a model's step with these values in place of its variables.

    Args:
        model: the model, built.
        step: its `train_step` or `test_step`, see `step_of`.
        values: of its variables.
        data: what the step is given: one replica's rows.
        share: what these are of the batch.
        gather: what `mk.train.all_gather` does.
        scale, is_part, separates, by_user: see `PureScope`.
    """
    wrap_keras()
    wrap_draws()
    variables = metric_variables(model)
    weights = list(zip(model.trainable_variables, values.weights, strict=True))
    others = [
        *zip(model.non_trainable_variables, values.state, strict=True),
        *zip(variables, values.metrics, strict=True),
    ]
    of_parts = gathers_within() if row_draws() else None
    kinds = {"is_part": is_part, "separates": separates, "by_user": by_user}
    scope = PureScope(share, weights, others, scale=scale, gather=of_parts, **kinds)
    with _around(model, scope), gathering(gather), scope, within(scope):
        logs = named_logs(step(data), step)
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
        # A summary keeps a user's step from being a function; of a layer's, a warning tells.
        one_replica(summaries=scope.summaries if scope.by_user else None),
        seeds_on_host(),
        without_waits(totals=None if scope.is_part else scope.share.totals()),
        functions_inlined(),
        keeping(kept_by(layers_of(model))),
    ):
        yield


def no_gather(rows: Nest) -> Nest:
    """Do what `mk.train.all_gather` does in a model's own step."""
    raise StepError(
        "mk.train.all_gather was called in a model's own train_step, whose gradients are averaged over the replicas: "
        "what other replicas say of a row would not arrive at it. For a loss over the whole batch use "
        "Step.from_loss(model, optimizer, loss_fn, whole_batch=True)."
    )
