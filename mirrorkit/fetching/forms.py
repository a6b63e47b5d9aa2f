"""What an item looks like: a nest of dicts and tuples, with the dtype and the shape of each array in it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

_NUMBERS = "biufc"  # kinds of dtypes
_LOOKED_AT = 8  # parts of a list in which arrays are looked for: it may be a long one of numbers


@dataclass(frozen=True)
class Leaf:
    """The dtype and the shape of an array; text and bytes have the dtype object."""

    dtype: np.dtype
    shape: tuple[int, ...]

    def __str__(self) -> str:
        """For errors."""
        name = "text" if self.dtype == object else self.dtype.name
        return f"{name} {list(self.shape)}" if self.shape else name


Form = Any  # a Leaf, or a tuple or a dict of them, also one within the other


def as_arrays(item: Any, path: str = "") -> Any:
    """Return an item as a nest of dicts and tuples of NumPy arrays; text becomes bytes, as in TensorFlow.

    Raises:
        ValueError: what is no array, by its path in the item.
    """
    if type(item) is np.ndarray and item.dtype.kind in _NUMBERS and item.dtype.isnative:  # as most are
        return item
    if isinstance(item, (Mapping, tuple)) and not item:
        raise ValueError(f"{_named(path)} is an empty {type(item).__name__}")
    if isinstance(item, Mapping):
        return {key: as_arrays(item[key], f"{path}[{key!r}]") for key in sorted(item)}
    if isinstance(item, tuple):
        return tuple([as_arrays(part, f"{path}[{number}]") for number, part in enumerate(item)])
    if isinstance(item, list) and lists_arrays(item):
        raise ValueError(
            f"{_named(path)} is a list that may mean several arrays, or one with a row for each part. Give a tuple for "
            "several, or np.stack(...) for one"
        )
    if np.ma.is_masked(item):
        raise ValueError(f"{_named(path)} is an array with masked values. Fill them: .filled(...)")
    return _as_array(item, path)


def mapped(function: Callable[[Any], Any], nest: Any) -> Any:
    """Return a nest with what a function makes of each leaf."""
    if isinstance(nest, dict):
        return {key: mapped(function, part) for key, part in nest.items()}
    return tuple([mapped(function, part) for part in nest]) if isinstance(nest, tuple) else function(nest)


def form_of(arrays: Any) -> Form:
    """Return the form of a nest of arrays."""
    return mapped(lambda array: Leaf(array.dtype, array.shape), arrays)


def flat(nest: Any) -> Iterator[Any]:
    """Yield the leaves of a nest of arrays, or of a form."""
    if isinstance(nest, (dict, tuple)):
        for part in nest.values() if isinstance(nest, dict) else nest:
            yield from flat(part)
    else:
        yield nest


def pack(form: Form, leaves: Sequence[Any]) -> Any:
    """Return a nest with these leaves; the inverse of `flat`."""
    rest = iter(leaves)
    return mapped(lambda _: next(rest), form)


def described(form: Form) -> str:
    """Return a form in words, such as "(uint8 [28, 28], int64)"."""
    if isinstance(form, dict):
        return f"{{{', '.join(f'{key!r}: {described(part)}' for key, part in form.items())}}}"
    if isinstance(form, tuple):
        return f"({', '.join(map(described, form))}{',' * (len(form) == 1)})"
    return str(form)


def _as_array(value: Any, path: str) -> np.ndarray:
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ValueError(f"{_named(path)} is not an array: {error}. Pad its parts to one length") from error
    if array.dtype.kind == "S" and not isinstance(value, (np.ndarray, np.generic)):
        array = np.asarray(value, object)  # or it cuts off zeros at the end
    if array.dtype.kind in "SUO":
        parts = [part.encode() if isinstance(part, str) else part for part in array.ravel().tolist()]
        if all(isinstance(part, bytes) for part in parts):
            found = np.empty(len(parts), object)
            found[:] = parts
            return found.reshape(array.shape)
    elif array.dtype.kind in _NUMBERS or array.dtype.name == "bfloat16":
        return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
    if array.dtype != object:
        raise ValueError(f"{_named(path)} is an array of {array.dtype}. Convert it, for instance by .astype('float32')")
    raise ValueError(
        f"{_named(path)} is {type(value).__name__}; it must be numbers, text or bytes, or a tuple or dict of them"
    )


def lists_arrays(value: Any) -> bool:
    """Whether it is a tuple or list of arrays, dicts or further ones; not of numbers, which is an array."""
    return isinstance(value, (list, tuple)) and any(
        isinstance(part, Mapping) or len(getattr(part, "shape", ())) > 0 or lists_arrays(part)
        for part in itertools.islice(value, _LOOKED_AT)
    )


def _named(path: str) -> str:
    return f"its part {path}" if path.startswith("[") else path or "it"
