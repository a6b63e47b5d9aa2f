"""Plain values come back as they were, with their kinds; what is not plain is refused."""

from __future__ import annotations

import collections
import enum
import json
import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from mirrorkit.train.checkpoints.plain import NotPlainError, decode, encode

VALUES = [
    None,
    True,
    -7,
    2**70,
    0.1,
    -0.0,
    math.inf,
    "text \ud800 \u00e9",
    [],
    [1, [2.5, None], "a"],
    (1, (), [2]),
    {},
    {"a": 1, 3: (1, 2), (1, "b"): {"c": [True]}, None: 0, "array": 1},
    [0.1 * i for i in range(100)],
    list(range(-50, 50)),
    [2**70] * 40,
    [True] * 40,
    [1, 0.5] * 40,
    [np.float32(i) for i in range(40)],
    [np.float32(1), np.float64(2)] * 20,
    np.float32(0.1),
    np.float64(0.1),
    np.float16(0.1),
    np.int64(-(2**63)),
    np.uint64(2**64 - 1),
    np.bool_(True),
    ml_dtypes.bfloat16(0.1),
    np.arange(6.0).reshape(2, 3).T,
    np.array(3, "uint8"),
    np.zeros((0, 2), "complex64"),
    np.array([[0.1]], ml_dtypes.bfloat16),
    ["a" * 3 * 10**6, [{"loss": 0.1}] * 1000],
    {"weights": [np.ones(3, "float32"), np.zeros(())], "best": np.float32(1)},
]


def _same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict):
        return _same(list(one.items()), list(other.items()))
    if isinstance(one, (np.ndarray, np.generic)):
        return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
    return repr(one) == repr(other)


@pytest.mark.parametrize("value", VALUES, ids=lambda value: str(value)[:30].encode("ascii", "replace").decode())
def test_a_value_comes_back_with_its_kind(value: Any) -> None:
    node, found = encode(value)
    arrays = iter(found)
    assert _same(decode(json.loads(json.dumps(node)), arrays), value)
    assert next(arrays, None) is None


class _Level(enum.IntEnum):
    HIGH = 1


def _loop() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


OTHERS = {
    "function": print,
    "set": {1},
    "deque": collections.deque([1]),
    "defaultdict": collections.defaultdict(int),
    "IntEnum": _Level.HIGH,
    "bytes": b"a",
    "complex": 1j,
    "array of objects": np.array([None]),
    "array of texts": np.array(["a"]),
    "array of times": np.array(["2020-01-01"], "datetime64[D]"),
    "array with fields": np.zeros(2, [("a", "f4")]),
    "text of NumPy": np.str_("a"),
    "a long double": np.longdouble(1),
    "complex number of NumPy": np.complex64(1),
    "array of another byte order": np.zeros(2, ">f4"),
    "a very long int": 2**5000,
    "itself": _loop(),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_what_is_not_plain_is_refused_wherever_it_is(kind: str) -> None:
    for value in (OTHERS[kind], [1, OTHERS[kind]], {"a": (OTHERS[kind],)}):
        with pytest.raises(NotPlainError):
            encode(value)
