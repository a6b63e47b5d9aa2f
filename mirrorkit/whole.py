"""Whole numbers as arguments: Python and NumPy integers are accepted, booleans and floats are not."""

from __future__ import annotations

import math
import operator
from typing import Any

from mirrorkit.errors import MirrorkitError


def is_whole(value: Any, least: float = 1) -> bool:
    """Return whether `value` is a whole number of at least `least`."""
    if isinstance(value, bool) or str(getattr(value, "dtype", "")) == "bool":  # those of older NumPy are an index too
        return False
    try:
        return operator.index(value) >= least
    except TypeError:
        return False


def whole_number(
    name: str, value: Any, error: type[MirrorkitError], *, least: int = 1, most: float = math.inf, or_else: str = ""
) -> int:
    """Return an argument as an int.

    Args:
        name: of the argument, for the message.
        value: what was given.
        error: raised where it is no whole number from `least` to `most`.
        least, most: the smallest and the largest number.
        or_else: what else the argument takes, such as ", or 'auto'".
    """
    if not is_whole(value, least) or value > most:
        numbers = f"from {least} on" if most == math.inf else f"from {least} to {most}"
        raise error(f"{name} must be a whole number {numbers}{or_else}, found {value!r}.")
    return int(value)
