"""Plain values as JSON and arrays: None, numbers, texts, NumPy's arrays; lists, tuples and dicts of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from mirrorkit._types import Json

_DEEPEST = 50
_MOST_BITS = 4096  # of an int: json reads no longer ones
_AS_ARRAY = 32  # numbers in a list, from which on it is stored as an array


class NotPlainError(TypeError):
    """A value is of another kind, or holds one."""


@dataclass
class Encoded:
    """A value as JSON, and the arrays in it in the order in which JSON names them; they are not copied."""

    value: Json = None
    arrays: list[np.ndarray] = field(default_factory=list)

    def digest(self) -> bytes:
        """Return what differs where values differ."""
        found = hashlib.blake2b(json.dumps(self.value).encode(), digest_size=16)
        for array in self.arrays:
            found.update(f"{array.dtype}{array.shape}".encode())
            found.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        return found.digest()


def encode(value: Any) -> Encoded:
    """Return the value as `decode` takes it.

    Raises:
        NotPlainError: it is not plain; the error says what it holds.
    """
    encoder = _Encoder()
    return Encoded(encoder.node(value), encoder.arrays)


class _Encoder:
    def __init__(self) -> None:
        self.arrays: list[np.ndarray] = []

    def node(self, value: Any, depth: int = 0) -> Json:
        kind = type(value)  # a subclass may hold more
        if depth > _DEEPEST:
            raise NotPlainError(f"value nested more than {_DEEPEST} deep")
        if value is None or kind in (bool, float, str) or (kind is int and value.bit_length() <= _MOST_BITS):
            return value
        if kind is np.ndarray and _is_stored(value.dtype):
            return self._array("array", value)
        if kind is np.ndarray:
            raise NotPlainError(f"NumPy array of {value.dtype}")
        if isinstance(value, np.generic) and _is_number(value.dtype):
            return {"scalar": [value.dtype.name, value.item()]}
        if kind is list:
            numbers = _numbers(value)
            return [self.node(one, depth + 1) for one in value] if numbers is None else self._array(*numbers)
        if kind is tuple:
            return {"tuple": [self.node(one, depth + 1) for one in value]}
        if kind is dict:
            return {"dict": [[self.node(one, depth + 1) for one in pair] for pair in value.items()]}
        raise NotPlainError(f"{kind.__module__}.{kind.__qualname__}")

    def _array(self, tag: str, array: np.ndarray) -> Json:
        self.arrays.append(array)
        return {tag: len(array.shape)}


def decode(value: Json, arrays: Iterator[np.ndarray]) -> Any:
    """Return what `encode` was given, taking its arrays."""
    if isinstance(value, list):
        return [decode(one, arrays) for one in value]
    if not isinstance(value, dict):
        return value
    ((tag, held),) = value.items()
    if tag == "array":
        return next(arrays)
    if tag == "numbers":
        return next(arrays).tolist()
    if tag == "scalars":
        return list(next(arrays))
    if tag == "scalar":
        name, number = held
        return np.array(number, tf.as_dtype(name).as_numpy_dtype)[()]
    parts = [decode(one, arrays) for one in held]
    return tuple(parts) if tag == "tuple" else dict(parts)


def _numbers(values: list[Any]) -> tuple[str, np.ndarray] | None:
    """Return a long list of numbers of one kind as an array, with its tag."""
    kind = type(values[0]) if len(values) >= _AS_ARRAY else None
    if kind is None or any(type(one) is not kind for one in values):
        return None
    if kind is float:
        return "numbers", np.array(values, np.float64)
    if kind is int and max(map(abs, values)) < 2**63:
        return "numbers", np.array(values, np.int64)
    if issubclass(kind, np.generic) and _is_number(np.dtype(kind)):
        return "scalars", np.array(values, kind)
    return None


def _is_stored(dtype: np.dtype) -> bool:
    """Whether TensorFlow has this dtype too, so that a checkpoint can hold it as it holds that of a variable."""
    try:
        found = np.dtype(tf.as_dtype(dtype).as_numpy_dtype)
    except TypeError:
        return False
    return found == dtype and not dtype.hasobject and dtype.fields is None and dtype.kind not in "SUMm"


def _is_number(dtype: np.dtype) -> bool:
    """Whether it is one of real numbers that a Python float or int holds exactly."""
    return _is_stored(dtype) and dtype.kind != "c"
