"""Arrays in tuples and dicts: what a split holds for a model with several inputs or outputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from mirrorkit.errors import DataError
from mirrorkit.fetching import as_arrays, lists_arrays

Arrays = Any  # np.ndarray, or a tuple or a dict of them, also one within the other


def leaves(name: str, value: Arrays) -> Iterator[tuple[str, Any]]:
    """Yield each array with its path, such as `images['left'][0]`."""
    if isinstance(value, (Mapping, list, tuple)):
        for key, part in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from leaves(f"{name}[{key!r}]", part)
    else:
        yield name, value


def pick(value: Arrays, index: Any) -> Arrays:
    """Return these rows of each array; of none, none."""
    return None if value is None else tf.nest.map_structure(lambda array: array[index], value)


def describe(value: Arrays) -> str:
    """Return paths, dtypes and shapes."""
    return ", ".join(f"{path} {leaf.dtype} {list(leaf.shape)}".strip() for path, leaf in leaves("", value))


def kind(value: Arrays) -> str:
    """Return what holds several arrays: "a dict" or "a tuple"."""
    return "a dict" if isinstance(value, Mapping) else "a tuple"


def as_int64(labels: np.ndarray) -> np.ndarray:
    """Return labels as int64.

    Raises:
        DataError: one is too large.
    """
    if labels.dtype == np.uint64 and labels.size and labels.max() > np.iinfo(np.int64).max:
        raise DataError(f"labels become int64, which cannot hold {labels.max()}. Number the classes from 0 on.")
    return labels.astype(np.int64)


def checked(name: str, value: Any) -> Arrays:
    """Return the arrays of what was given under a name: one, or as in Keras tuples and dicts of arrays.

    Raises:
        DataError: what is no array of numbers [N, ...], by its path; a list of arrays, which may mean one or several.
    """
    try:
        made = as_arrays(np.asarray(value) if isinstance(value, tuple) and not lists_arrays(value) else value, name)
    except ValueError as error:
        raise DataError(f"{error}.") from error
    for path, array in leaves(name, made):
        if array.dtype == object:
            raise DataError(
                f"{path} must hold numbers; found text. Number classes: class_names, {path} = np.unique({path}, "
                "return_inverse=True). Inputs may be text in mk.data.source."
            )
        if array.dtype.kind not in "biuf":
            raise DataError(
                f"{path} must hold numbers; found dtype {array.dtype}. Convert it, for instance by .astype."
            )
        if array.ndim == 0:
            raise DataError(f"{path} must have shape [N, ...], one row per example; found a single number.")
    return made


class OfOne(NamedTuple):
    """A batch `(x,)` of a `tf.data.Dataset`, which Keras gives to a `train_step` as it is; of arrays it gives `x`."""

    x: Any


def is_none(part: Any) -> bool:
    """Whether a part of a batch, or of its spec, is None."""
    return part is None or (isinstance(part, tf.TypeSpec) and part == tf.type_spec_from_value(None))


def without_none(batch: Any) -> Any:
    """Return a batch, or its spec, without None at the end: as in Keras `(x, y, None)` is `(x, y)`."""
    if type(batch) is tuple:
        while len(batch) > 1 and is_none(batch[-1]):
            batch = batch[:-1]
    return batch


def dataset_without_none(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Return a dataset whose batches have no None at the end."""
    if without_none(dataset.element_spec) is dataset.element_spec:
        return dataset
    return dataset.map(lambda *batch: without_none(batch))


def of_user(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Return a user's dataset without None, and with an `OfOne` for each `(x,)`."""
    dataset = dataset_without_none(dataset)
    spec = dataset.element_spec
    return dataset.map(lambda x: OfOne(x)) if type(spec) is tuple and len(spec) == 1 else dataset
