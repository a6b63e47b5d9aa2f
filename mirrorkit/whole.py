"""Whole numbers and switches as arguments: those of Python and NumPy are accepted, what Python takes for one is not."""

from __future__ import annotations

import functools
import inspect
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from mirrorkit.errors import MirrorkitError

F = TypeVar("F", bound=Callable[..., Any])


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


def require_switches(values: Mapping[str, Any], error: type[MirrorkitError]) -> None:
    """Refuse, of arguments by name, what is not True or False; "no" would be true."""
    for name, value in values.items():
        if type(value).__name__ not in ("bool", "bool_"):  # NumPy's are called "bool_" before NumPy 2
            raise error(f"{name} must be True or False, found {value!r}.")


def checks_switches(error: type[MirrorkitError]) -> Callable[[F], F]:
    """Have a function refuse what is not True or False for its arguments that are annotated as `bool`."""

    def decorate(function: F) -> F:
        parameters = inspect.signature(function).parameters
        names = [name for name, parameter in parameters.items() if parameter.annotation == "bool"]

        @functools.wraps(function)
        def checked(*args: Any, **options: Any) -> Any:
            given = {**dict(zip(parameters, args, strict=False)), **options}
            require_switches({name: given[name] for name in names if name in given}, error)
            return function(*args, **options)

        return checked  # type: ignore[return-value]

    return decorate
