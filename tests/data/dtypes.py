"""The dtypes that the arrays of a split may have, by name."""

from __future__ import annotations

IN_SPLITS = [
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64"),
]
