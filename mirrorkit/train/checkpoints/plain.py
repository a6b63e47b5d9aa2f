"""Plain values as JSON and arrays: None, numbers, texts, NumPy's arrays; lists, tuples and dicts of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from mirrorkit._types import Json

# The dtypes that a checkpoint can hold as it holds a variable of TensorFlow.
_STORED = (
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 bfloat16 float8_e4m3fn float8_e5m2 float16 float32 float64 "
    "complex64 complex128"
)


class NotPlainError(TypeError):
    """A value is of another kind, or holds one."""


def encode(value: Any) -> tuple[Json, list[np.ndarray]]:
    """Return the value as `decode` takes it: JSON, and the arrays in the order in which it names them, not copied.

    Raises:
        NotPlainError: it is not plain; the error says what it holds.
    """
    arrays: list[np.ndarray] = []
    return _node(value, arrays, 0), arrays


def _node(value: Any, arrays: list[np.ndarray], depth: int) -> Json:
    kind = type(value)  # a subclass may hold more
    if depth > 50:  # deeper ones, and longer numbers than below, json would write and not read
        raise NotPlainError("value that is nested too deep")
    if value is None or kind in (bool, float, str) or (kind is int and value.bit_length() <= 4096):
        return value
    if kind in (list, tuple):
        nodes = [_node(one, arrays, depth + 1) for one in value]
        return nodes if kind is list else {"tuple": nodes}
    if kind is dict:
        return {"dict": [_node(list(pair), arrays, depth + 1) for pair in value.items()]}
    if kind is not np.ndarray and not isinstance(value, np.generic):
        raise NotPlainError(f"{kind.__module__}.{kind.__qualname__}")
    if not (value.dtype.isnative and value.dtype.name in _STORED.split()):
        raise NotPlainError(f"NumPy array or number of {value.dtype}")
    if kind is not np.ndarray:
        return {"scalar": [value.dtype.name, _node(value.item(), arrays, depth + 1)]}  # no complex one
    arrays.append(value)
    return {"array": value.ndim}


def decode(value: Json, arrays: Iterator[np.ndarray]) -> Any:
    """Return what `encode` was given, taking its arrays."""
    if isinstance(value, list):
        return [decode(one, arrays) for one in value]
    if not isinstance(value, dict):
        return value
    ((tag, held),) = value.items()
    if tag == "array":
        return next(arrays)
    if tag == "scalar":
        name, number = held
        return np.array(number, tf.as_dtype(name).as_numpy_dtype)[()]
    parts = [decode(one, arrays) for one in held]
    return tuple(parts) if tag == "tuple" else dict(parts)
