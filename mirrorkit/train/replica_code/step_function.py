"""A model's own `train_step` and `test_step` as functions: what Keras gives them, and what they return."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from mirrorkit._types import KerasModel, Nest, Spec
from mirrorkit.errors import StepError
from mirrorkit.train.keras_model.building import build, outputs_of_function, require_in_scope
from mirrorkit.train.keras_model.floatx import Cast
from mirrorkit.train.keras_model.layer_state import layers_of
from mirrorkit.train.keras_model.outputs import unpack_batch
from mirrorkit.train.replica_code.keras_calls import functions_inlined, noting_optimizers


def step_of(model: KerasModel, what: str) -> Callable[..., Any]:
    """Return the model's step; of a tf.function what it was made of, since replicas wait for each other in it."""
    step: Any = model.train_step if what == "train" else model.test_step
    python: Callable[..., Any] = getattr(step, "python_function", step)
    return python


def as_keras(batch: Nest) -> Nest:
    """Return what Keras gives a `train_step`: of data without targets the inputs themselves."""
    return batch[0] if isinstance(batch, (tuple, list)) and len(batch) == 1 else batch


def build_as_it_trains(model: KerasModel, element_spec: Spec, strategy: tf.distribute.Strategy) -> None:
    """Create what is missing of a model's layers as its `train_step` does, as in Keras; else by a call of the model."""

    def train(batch: Nest) -> tf.Tensor:
        step_of(model, "train")(batch)
        return tf.zeros([])

    if all(layer.built for layer in layers_of(model)[1:]):  # the model itself need not be, where it has no `call`
        return
    require_in_scope(model, strategy)
    try:
        with strategy.scope(), noting_optimizers(), functions_inlined():
            outputs_of_function(train, Cast(model)(as_keras(element_spec)))
    except Exception:  # of data to evaluate or predict with, say
        build(model, unpack_batch(element_spec), strategy)


def checked_logs(logs: Any, step: Callable[..., Any]) -> Mapping[str, tf.Tensor]:
    """Return what a step returned, with dicts of metrics flattened, where all are single numbers by name."""
    if not isinstance(logs, Mapping):
        raise StepError(f"{step.__name__} must return its logs, a dict of numbers by name; found {logs!r}.")
    values = flat_logs(logs)
    wrong = [name for name, value in values.items() if value.shape.rank != 0]
    if wrong:
        raise StepError(f"{step.__name__} logs {wrong}, which are no single numbers. Return their means.")
    return values


def flat_logs(logs: Mapping[str, Any]) -> dict[str, tf.Tensor]:
    """Return logs by name, with those of metrics that have several numbers among the others."""
    flat: dict[str, Any] = {}
    for name, value in logs.items():
        flat |= value if isinstance(value, Mapping) else {name: value}
    return {str(name): tf.convert_to_tensor(value) for name, value in flat.items()}
