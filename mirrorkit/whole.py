"""Whole numbers as arguments: Python and NumPy integers are accepted, booleans and floats are not."""

from __future__ import annotations

import operator
from typing import Any


def is_whole(value: Any, least: float = 1) -> bool:
    """Return whether `value` is a whole number of at least `least`."""
    try:
        return not isinstance(value, bool) and operator.index(value) >= least
    except TypeError:
        return False
