"""A model's own `train_step` and `test_step` as functions: what Keras gives them, and what they return."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from mirrorkit import private
from mirrorkit._keras import keras
from mirrorkit._types import KerasModel, Nest, Spec
from mirrorkit.errors import StepError
from mirrorkit.train.ambient import ambient
from mirrorkit.train.keras_model.building import build, require_in_scope
from mirrorkit.train.keras_model.calling import placeholders
from mirrorkit.train.keras_model.layer_state import layers_of, overrides
from mirrorkit.train.keras_model.outputs import unpack_batch
from mirrorkit.train.replica_code.replaced import call_inlined


def step_of(model: KerasModel, what: str) -> Any:
    """Return the model's step; of a tf.function what it was made of, since replicas wait for each other in it."""
    step = model.train_step if what == "train" else model.test_step
    if hasattr(step, "python_function"):
        return functools.wraps(step.python_function)(functools.partial(call_inlined, step))
    return step


def as_keras(batch: Nest) -> Nest:
    """Return what Keras gives a `train_step`: of one array without targets the array itself, not an `OfOne`'s."""
    is_one = type(batch) is tuple and len(batch) == 1 and not isinstance(batch[0], (tuple, list))
    return batch[0] if is_one else batch


def build_as_it_trains(model: KerasModel, element_spec: Spec, strategy: tf.distribute.Strategy) -> None:
    """Create what is missing of layers and metrics as the model's `train_step` does, as in Keras; else by its call.

    The step is traced outside of the strategy, whose replicas could not create a variable each; the variables are
    created in its scope nevertheless.
    """
    is_built = all(layer.built for layer in layers_of(model)[1:])  # the model itself need not be, without a `call`
    if is_built and _metrics_are_built(model):
        return
    require_in_scope(model, strategy)
    # Not a tf.function's, in which variables are created in a way of its own; Keras builds models in one like this.
    graph = private.get("__internal__.FuncGraph")("train_step")
    try:
        with created_in(strategy), ambient.set(optimizers={}, inlines=True), graph.as_default():
            data = as_keras(placeholders(element_spec))
            step_of(model, "train")(data)
            if not _metrics_are_built(model):  # which Keras's `fit` builds where the step does not
                x, y, sample_weight = unpack_batch(data)
                model.compute_metrics(x, y, model(x), sample_weight)
    except Exception:
        if not overrides(model, "call"):
            raise
        build(model, unpack_batch(element_spec), strategy)  # it may be data to evaluate or predict with


def _metrics_are_built(model: KerasModel) -> bool:
    """Return whether the metrics are, of which those of `compile` are one, which is built with the data."""
    return all(getattr(metric, "built", True) for metric in keras.Model.metrics.fget(model))


@contextmanager
def created_in(strategy: tf.distribute.Strategy) -> Iterator[None]:
    """Create variables in a strategy's scope within the block, and do nothing else there."""
    creating = False

    def create(next_creator: Callable[..., tf.Variable], **given: Any) -> tf.Variable:
        nonlocal creating
        if creating:
            return next_creator(**given)
        creating = True
        try:
            with strategy.scope():
                return tf.Variable(**given)
        finally:
            creating = False

    with tf.variable_creator_scope(create):
        yield


def named_logs(logs: Any, step: Callable[..., Any]) -> Mapping[str, tf.Tensor]:
    """Return what a step returned, with dicts of metrics flattened."""
    if not isinstance(logs, Mapping):
        raise StepError(f"{step.__name__} must return its logs, a dict of numbers by name; found {logs!r}.")
    return flat_logs(logs)


def flat_logs(logs: Mapping[str, Any]) -> dict[str, tf.Tensor]:
    """Return logs by name, with those of metrics that have several numbers among the others, as Keras does."""
    flat: dict[str, tf.Tensor] = {}
    for name, value in logs.items():
        flat |= flat_logs(value) if isinstance(value, Mapping) else {str(name): tf.convert_to_tensor(value)}
    return flat


_CALLS = {"evaluate": "test_step", "predict": "predict_step"}


def require(model: KerasModel, what: str) -> None:
    """Refuse what a model does not define: one whose parts alone are called says nothing of how to evaluate it."""
    if what in _CALLS and not (overrides(model, "call") or overrides(model, _CALLS[what])):
        raise StepError(
            f"{what} was asked for, but {type(model).__name__} has neither `call` nor `{_CALLS[what]}`. Define one of "
            "them."
        )
