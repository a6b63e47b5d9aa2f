"""The examples of items as `(x,)`, `(x, y)` or `(x, y, sample_weight)`, with labels as `mk.data.arrays` has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from mirrorkit.data.nests import as_int64, kind
from mirrorkit.errors import DataError, RecipeError
from mirrorkit.fetching import Leaf, described, empty, pack


class ExampleForm:
    """What the examples of items look like, whose form is given; `num_classes` is compared with the labels.

    Raises:
        RecipeError: labels that do not fit `num_classes`.
        DataError: sample weights that are not one number for each example.
    """

    def __init__(self, form: Any, num_classes: int | None) -> None:
        self._form, self._num_classes = form, num_classes
        parts = form if isinstance(form, tuple) and len(form) <= 3 else (form,)
        self._parts: tuple[Any, ...] = parts
        labels = parts[1] if len(parts) > 1 else None
        self.unlabelled = labels is None
        self.has_classes = isinstance(labels, Leaf) and labels.dtype.kind in "biu"
        are_rows = isinstance(labels, Leaf) and labels.shape == (num_classes,)
        if num_classes is not None and isinstance(labels, Leaf) and not (self.has_classes or are_rows):
            raise RecipeError(
                f"Labels that are {labels} with num_classes={num_classes} must be floats [{num_classes}] or integers. "
                "Regression targets take no num_classes."
            )
        weight = parts[2] if len(parts) == 3 else Leaf(np.dtype(np.float32), ())
        if not isinstance(weight, Leaf) or weight.shape or weight.dtype.kind not in "biuf":
            raise DataError(f"sample_weight must be one number for each example; item 0 has {described(weight)}.")

    def __str__(self) -> str:
        """For comparisons between workers."""
        return described(self._form)

    @property
    def shape_of_inputs(self) -> list[int | None] | str:
        """[None, ...], or in place of that of several inputs what holds them."""
        inputs = self._parts[0]
        return [None, *inputs.shape] if isinstance(inputs, Leaf) else kind(inputs)

    def element(self, leaves: Sequence[np.ndarray], numbers: np.ndarray) -> tuple[Any, ...]:
        """Return the arrays of a batch, given those of its items, which have these numbers.

        Raises:
            DataError: a label outside of the classes.
        """
        packed = pack(self._form, leaves)
        x, *rest = packed if self._parts is self._form else (packed,)
        others: list[Any] = rest
        if others and self.has_classes:
            labels = as_int64(others[0])
            others[0] = labels[:, 0] if labels.shape[1:] == (1,) else labels
            self._require_classes(others[0], numbers)
        if len(others) == 2:
            others[1] = others[1].astype(np.float32)
        return (x, *others)

    def spec(self, size: int | None) -> tuple[Any, ...]:
        """Return the specs of the arrays of a batch."""
        arrays = self.element(empty(self._form, 0), np.arange(0))
        return tf.nest.map_structure(lambda array: tf.TensorSpec([size, *array.shape[1:]], array.dtype), arrays)

    def _require_classes(self, labels: np.ndarray, numbers: np.ndarray) -> None:
        if self._num_classes is None:
            return
        rows, *_ = np.nonzero((labels < 0) | (labels >= self._num_classes))
        if len(rows):
            raise DataError(
                f"The label of item {numbers[rows[0]]} is {labels[rows[0]]}; labels must lie in 0 .. "
                f"{self._num_classes - 1}, with num_classes={self._num_classes}."
            )
