"""The losses that a model's step calls, and with what: for checks of shapes and labels before the first step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from mirrorkit import private
from mirrorkit._keras import keras
from mirrorkit._types import KerasModel, Loss, PerOutput
from mirrorkit.train.ambient import ambient, replaces


class LossCall(NamedTuple):
    """A call of a `keras.losses.Loss`; the tensors are those of a trace."""

    loss: Loss
    y: Any
    y_pred: Any
    weight: Any = None


@replaces("Loss.__call__", within="losses")
def _noted(original: Any, loss: Loss, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
    """Note which losses are called, in order; one that a function stands for is Keras's wrapper."""
    ambient.losses.append(LossCall(loss, y_true, y_pred, sample_weight))
    with ambient.set(losses=None):  # not those that it calls
        return original(loss, y_true, y_pred, sample_weight=sample_weight)


def log_names(model: KerasModel, calls: Sequence[LossCall]) -> list[str]:
    """Return the log name of each loss that the model's `compile` calls: "loss" where there is one."""
    trackers = [one.name for one in model.metrics if type(one) is keras.metrics.Mean and one.name.endswith("_loss")]
    return trackers[: len(calls)] if len(trackers) >= len(calls) else ["loss"] * len(calls)


def loss_name(loss: Loss) -> str:
    """Return the name of the function that a loss stands for, or of its class."""
    return str(getattr(getattr(loss, "fn", loss), "__name__", type(loss).__name__))


def setting_of(loss: PerOutput, name: str) -> Any:
    """Return what a loss was created with, such as `from_logits`; None where it has no such setting."""
    sparse = keras.losses.SparseCategoricalCrossentropy
    settings = sparse.get_config(loss) if isinstance(loss, sparse) else {}  # from Keras 3.16 on they are no attributes
    return getattr(loss, name, settings.get(name))


def mask_of(tensor: tf.Tensor) -> Any:
    """Return the mask that Keras has put on a tensor, or None."""
    return private.get("masking.get_keras_mask")(tensor)
