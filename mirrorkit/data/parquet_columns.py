"""Columns of Parquet files as arrays: which types have one, missing values, values outside the classes."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tensorflow as tf

from mirrorkit.errors import DataError, RecipeError

_CURE = (
    "Choose other columns, or write it as numbers, strings, or lists of one length, such as "
    "pyarrow.list_(pyarrow.float32(), n)."
)


def pyarrow(module: str = "pyarrow") -> Any:
    """Return pyarrow or a module of it, which is imported when it is needed.

    Raises:
        RecipeError: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise RecipeError(
            "mk.data.parquet reads with pyarrow, which is not installed. Run: pip install pyarrow"
        ) from error


@dataclass(frozen=True)
class Column:
    """A column, and what becomes of it.

    Attributes:
        name: of the column.
        dtype: of the tensors.
        shape: of the value in a row, () for a number or a string.
        arrow_type: of what stands in the rows, or in their lists.
        fill: takes the place of missing values, which are refused where it is None.
        classes: how many classes the column holds; None where it holds none, or their number is unknown.
    """

    name: str
    dtype: tf.DType
    shape: tuple[int, ...]
    arrow_type: Any
    fill: Any = None
    classes: int | None = None

    def values(self, array: Any, file: str) -> np.ndarray:
        """Return an Arrow array of this column as an array [N, ...], which may share its memory.

        Raises:
            DataError: missing values, or such outside the classes; the file is named.
        """
        types = pyarrow("pyarrow.types")
        if types.is_dictionary(array.type):
            array = array.dictionary_decode()
        if array.null_count and self.fill is not None:
            array = array.fill_null(self.fill)
        for _ in self.shape:
            self._require_whole(array, file)
            array = array.flatten()
        self._require_whole(array, file)
        if self.dtype == tf.string:
            array = array.cast("large_binary" if types.is_large_string(array.type) else "binary")
        values = np.asarray(array.to_numpy(zero_copy_only=False)).reshape([-1, *self.shape])
        if self.classes is not None and len(values) and not 0 <= values.min() <= values.max() < self.classes:
            wrong = values[(values < 0) | (values >= self.classes)][0]
            raise DataError(
                f"{file}: the column {self.name!r} holds {wrong}, which is outside 0 .. {self.classes - 1}. Correct "
                "num_classes, or the data."
            )
        return values

    def filled_with(self, value: Any) -> Column:
        """Return the column with a value for missing ones, as pyarrow casts it: 0 is "0" among strings.

        Raises:
            RecipeError: one that the column cannot hold.
        """
        if self.shape:
            raise RecipeError(f"fill={value!r} was asked for, but the column {self.name!r} holds lists. Leave it out.")
        try:
            return replace(self, fill=pyarrow().scalar(value).cast(self.arrow_type))
        except (pyarrow().ArrowException, TypeError, OverflowError) as error:
            raise RecipeError(
                f"fill={value!r} was asked for, which the column {self.name!r} of type {self.arrow_type} cannot hold: "
                f"{error}. Give each column a value of its own: fill={{'column': value}}."
            ) from error

    def _require_whole(self, array: Any, file: str) -> None:
        if array.null_count:
            raise DataError(
                f"{file}: {array.null_count} values are missing in the column {self.name!r}. Fill them, with "
                f"fill={{{self.name!r}: 0}}, say, or leave out their rows when the file is written."
            )


def column_of(name: str, arrow_type: Any, file: str) -> Column:
    """Return the column of an Arrow type.

    Raises:
        DataError: a type that is no tensor.
    """
    types = pyarrow("pyarrow.types")
    inner = arrow_type.value_type if types.is_dictionary(arrow_type) else arrow_type
    shape: tuple[int, ...] = ()
    while types.is_fixed_size_list(inner):
        shape, inner = (*shape, inner.list_size), inner.value_type
    strings = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
    if any(is_one(inner) for is_one in strings) and not shape:
        return Column(name, tf.string, shape, inner)
    if types.is_boolean(inner) or types.is_integer(inner) or types.is_floating(inner):
        return Column(name, tf.as_dtype(inner.to_pandas_dtype()), shape, inner)
    raise DataError(f"{file}: the column {name!r} is of type {arrow_type}, which tensors do not have. {_CURE}")


def places_of(footer: Any, names: Sequence[str]) -> list[int]:
    """Where the footer tells of these columns, or of what is in their lists."""
    paths = [footer.schema.column(place).path for place in range(footer.num_columns)]
    begins = tuple(f"{name}." for name in names)  # of what is in their lists; a name may hold dots itself
    return [place for place, path in enumerate(paths) if path in names or path.startswith(begins)]
