"""Whole numbers as arguments: Python's and NumPy's count, booleans and floats do not."""

from __future__ import annotations

import operator
from typing import Any


def is_whole(value: Any, least: float = 1) -> bool:
    """Whether this is a whole number from `least` on."""
    try:
        return not isinstance(value, bool) and operator.index(value) >= least
    except TypeError:
        return False
