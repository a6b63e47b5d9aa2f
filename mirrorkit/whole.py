"""Whole numbers as arguments: Python and NumPy integers are accepted, booleans and floats are not."""

from __future__ import annotations

import operator
from typing import Any


def is_whole(value: Any, least: float = 1) -> bool:
    """Return whether `value` is a whole number of at least `least`."""
    if isinstance(value, bool) or str(getattr(value, "dtype", "")) == "bool":  # those of older NumPy are an index too
        return False
    try:
        return operator.index(value) >= least
    except TypeError:
        return False
