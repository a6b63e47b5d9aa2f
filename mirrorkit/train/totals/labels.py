"""Check that class labels are classes of the model's outputs: where all of them are in memory, before the first step.

TensorFlow refuses other labels on CPUs while it computes the loss. On GPUs, and by XLA, the loss becomes NaN.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mirrorkit._keras import keras
from mirrorkit._types import Loss, Nest
from mirrorkit.errors import DataError
from mirrorkit.train.keras_model.outputs import per_output
from mirrorkit.train.totals.losses import setting_of
from mirrorkit.train.totals.totals import Totals


def check_labels(totals: Totals, labels: Nest) -> None:
    """Refuse labels of a set (arrays in memory) that a sparse loss has no class for; name the first."""
    targets = per_output(totals.names, labels, "targets")
    for (output, loss), classes in zip(totals.losses.members, totals.losses.widths, strict=True):
        is_numbers = isinstance(targets[output], np.ndarray) and targets[output].dtype.kind in "biuf"
        if is_numbers and classes is not None and _takes_classes(loss):
            place = _first_other(targets[output], classes, setting_of(loss, "ignore_class"))
            if place is not None:
                found = targets[output][place]
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
    return loss is keras.losses.sparse_categorical_crossentropy


def _first_other(labels: np.ndarray, classes: int, ignored: int | None) -> tuple[int, ...] | None:
    """Return where the first label lies that is no class; floats count as the whole numbers they are cut to."""
    if labels.min() > -1 and labels.max() < classes:  # not so with a NaN
        return None
    is_class = (labels > -1) & (labels < classes)
    if ignored is not None:
        is_class |= labels == ignored
    others = np.argwhere(~is_class)
    return tuple(int(i) for i in others[0]) if len(others) else None
