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
    """Of a loss that takes class labels: the place of its targets among all, and which classes there are."""

    place: int
    classes: int  # values of the model's output
    ignored: int | None  # a label that does not count


def labelled(calls: Sequence[LossCall], y: Nest) -> list[LabelledLoss]:
    """Return the losses that take class labels, from the calls of a trace with these targets."""
    places = {id(one): place for place, one in enumerate(tf.nest.flatten(y))}
    return [
        LabelledLoss(places[id(call.y)], call.y_pred.shape[-1], setting_of(call.loss, "ignore_class"))
        for call in calls
        if id(call.y) in places and _takes_classes(call.loss) and call.y_pred.shape.rank and call.y_pred.shape[-1]
    ]


def check_labels(losses: Sequence[LabelledLoss], labels: Nest) -> None:
    """Refuse labels of a set (arrays in memory) that a sparse loss has no class for; name the first.

    Floats count as the whole numbers they are cut to.
    """
    targets = tf.nest.flatten(labels)
    for place, classes, ignored in losses:
        given = targets[place]
        is_numbers = isinstance(given, np.ndarray) and given.dtype.kind in "biuf"
        if not is_numbers or (given.min() > -1 and given.max() < classes):  # not so with a NaN
            continue
        others = np.argwhere(~((given > -1) & (given < classes)) & (given != ignored))
        if len(others):
            where = f" of example {others[0][0]} (counted from 0, as they lie in the split)"
            raise DataError(label_fault(given[tuple(others[0])], classes, where))


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
