"""Reads the items of any object that gives them by number as examples, with labels as `mk.data.arrays` has them."""

from __future__ import annotations

import contextlib
import functools
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from mirrorkit.data.indexable import number_of
from mirrorkit.data.nests import as_int64
from mirrorkit.data.reading import Reader
from mirrorkit.errors import DataError, RecipeError
from mirrorkit.fetching import Fetcher, Leaf, Processes, described, pack


class ItemReader(Reader):
    """Fetches items; an example is `(x,)`, `(x, y)` or `(x, y, sample_weight)`.

    Args:
        items: an object that gives them by number, or arrays.
        num_classes: is compared with the labels.
        threads: how many threads fetch.
        processes: how many processes do so instead; None for none.

    Attributes:
        number: of the items.
        unlabelled, has_classes: whether there are no labels, or such as may be classes.
        shape: of the inputs, [None, ...]; None where there are several.

    Raises:
        RecipeError: an object that gives no items by number; labels that do not fit `num_classes`.
        DataError: sample weights that are not one number for each example.
    """

    blocks = None

    def __init__(self, items: Any, num_classes: int | None, threads: int, processes: int | None) -> None:
        self.number, self._num_classes = number_of(items), num_classes
        self._threads = processes or threads
        self.together = 4 * self._threads  # so that small batches leave none of them idle
        self._source = Processes(items, processes) if processes else Fetcher(items)
        form = self._source.form
        inputs, *rest = self._parts = form if isinstance(form, tuple) and len(form) <= 3 else (form,)
        labels, weight = [*rest, None, None][:2]
        self.unlabelled = labels is None
        self.has_classes = isinstance(labels, Leaf) and labels.dtype.kind in "biu"
        self.shape = [None, *inputs.shape] if isinstance(inputs, Leaf) else None
        are_rows = isinstance(labels, Leaf) and labels.shape == (num_classes,)
        if num_classes is not None and isinstance(labels, Leaf) and not (self.has_classes or are_rows):
            raise RecipeError(
                f"Labels that are {labels} with num_classes={num_classes} must be floats [{num_classes}] or integers. "
                "Regression targets take no num_classes."
            )
        is_number = isinstance(weight, Leaf) and not weight.shape and weight.dtype.kind in "biuf"
        if weight is not None and not is_number:
            raise DataError(f"sample_weight must be one number for each example; item 0 has {described(weight)}.")

    def specs(self, rows: int | None) -> Any:
        """See `Reader`."""
        return tf.nest.map_structure(lambda array: tf.TensorSpec([rows, *array.shape[1:]], array.dtype), self._first)

    @functools.cached_property
    def _first(self) -> Any:
        return self.read(np.arange(1))

    def read(self, numbers: np.ndarray) -> Any:
        """See `Reader`."""
        return self._example(self._source.arrays(numbers), numbers)

    @contextlib.contextmanager
    def opened(self) -> Iterator[Callable[[np.ndarray], Any]]:
        """See `Reader`; several threads or processes share what is read."""
        with self._source.started(self._threads) as fetch:
            yield lambda numbers: self._example(fetch(numbers), numbers)

    def print_of(self, numbers: np.ndarray) -> str:
        """Return what tells these items, and the form of all, from others."""
        found = 0
        for array in self._source.arrays(np.unique(numbers)) if len(numbers) else ():
            content = repr(array.tolist()).encode() if array.dtype == object else array.tobytes()
            found = zlib.crc32(content, found)
        return f"{described(self._source.form)} {found}"

    def _example(self, leaves: Sequence[np.ndarray], numbers: np.ndarray) -> tuple[Any, ...]:
        """Return the arrays of a batch, given those of its items, which have these numbers.

        Raises:
            DataError: a label outside of the classes.
        """
        packed = pack(self._source.form, leaves)
        others: list[Any]
        x, *others = packed if self._parts is self._source.form else (packed,)
        if others and self.has_classes:
            labels = as_int64(others[0])
            others[0] = labels[:, 0] if labels.shape[1:] == (1,) else labels
            self._require_classes(others[0], numbers)
        if len(others) == 2:
            others[1] = others[1].astype(np.float32)
        return (x, *others)

    def _require_classes(self, labels: np.ndarray, numbers: np.ndarray) -> None:
        if self._num_classes is None:
            return
        rows, *_ = np.nonzero((labels < 0) | (labels >= self._num_classes))
        if len(rows):
            raise DataError(
                f"The label of item {numbers[rows[0]]} is {labels[rows[0]]}; labels must lie in 0 .. "
                f"{self._num_classes - 1}, with num_classes={self._num_classes}."
            )
