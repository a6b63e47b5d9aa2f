"""Check that class labels are classes of the model's outputs: where all of them are in memory, before the first step.

TensorFlow refuses other labels on CPUs while it computes the loss. On GPUs, and by XLA, the loss becomes NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from mirrorkit._keras import keras
from mirrorkit._types import Loss, Nest
from mirrorkit.errors import DataError
from mirrorkit.train.totals.losses import LossCall, setting_of


class LabelledLoss(NamedTuple):
    """A loss, and which of the targets it takes, by the place in them."""

    loss: Loss
    place: int
    classes: int | None  # how many the model's output has


def labelled(calls: Sequence[LossCall], y: Nest) -> list[LabelledLoss]:
    """Return the losses that take class labels, from the calls of a trace with these targets."""
    places = {id(one): place for place, one in enumerate(tf.nest.flatten(y))}
    return [
        LabelledLoss(call.loss, places[id(call.y)], call.y_pred.shape[-1])
        for call in calls
        if id(call.y) in places and _takes_classes(call.loss) and call.y_pred.shape.rank
    ]


def check_labels(losses: Sequence[LabelledLoss], labels: Nest) -> None:
    """Refuse labels of a set (arrays in memory) that a sparse loss has no class for; name the first."""
    targets = tf.nest.flatten(labels)
    for loss, number, classes in losses:
        is_numbers = isinstance(targets[number], np.ndarray) and targets[number].dtype.kind in "biuf"
        if is_numbers and classes is not None:
            place = _first_other(targets[number], classes, setting_of(loss, "ignore_class"))
            if place is not None:
                found = targets[number][place]
                where = f" of example {place[0]} (counted from 0, as they lie in the split)"
                raise DataError(label_fault(found, classes, where))


def label_fault(value: Any, classes: int, where: str) -> str:
    """Say that a class label is none, and what to do."""
    return (
        f"A label{where} is {value}; the loss takes whole numbers from 0 to {classes - 1}, one for each of the "
        f"{classes} values of the model's output. Correct the labels, or give the model an output for each class. "
        "For labels that should not count: keras.losses.SparseCategoricalCrossentropy(ignore_class=...)."
    )


def _takes_classes(loss: Loss) -> bool:
    if isinstance(loss, keras.losses.SparseCategoricalCrossentropy):
        return bool(getattr(loss, "axis", -1) == -1)
    return getattr(loss, "fn", loss) is keras.losses.sparse_categorical_crossentropy


def _first_other(labels: np.ndarray, classes: int, ignored: int | None) -> tuple[int, ...] | None:
    """Return where the first label lies that is no class; floats count as the whole numbers they are cut to."""
    if labels.min() > -1 and labels.max() < classes:  # not so with a NaN
        return None
    is_class = (labels > -1) & (labels < classes)
    if ignored is not None:
        is_class |= labels == ignored
    others = np.argwhere(~is_class)
    return tuple(int(i) for i in others[0]) if len(others) else None
