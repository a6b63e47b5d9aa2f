"""Numbers and switches as arguments: those of Python and NumPy are accepted, what Python takes for one is not."""

from __future__ import annotations

import functools
import inspect
import numbers
import operator
import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from mirrorkit.errors import MirrorkitError

F = TypeVar("F", bound=Callable[..., Any])

_MOST = 2**63 - 1  # int64, in which TensorFlow and NumPy count


def is_whole(value: Any, least: float = 1) -> bool:
    """Return whether `value` is a whole number of at least `least`."""
    if isinstance(value, bool) or str(getattr(value, "dtype", "")) == "bool":  # those of older NumPy are an index too
        return False
    try:
        return operator.index(value) >= least
    except TypeError:
        return False


def whole_number(
    name: str, value: Any, error: type[MirrorkitError], *, least: int = 1, most: int = _MOST, or_else: str = ""
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
        is_below = most == _MOST and not is_whole(value, most)
        limits = f"from {least} on" if is_below else f"from {least} to {most}"
        raise error(f"{name} must be a whole number {limits}{or_else}, found {value!r}.")
    return int(value)


def seconds(name: str, value: Any, error: type[MirrorkitError]) -> float:
    """Return an argument that is a number of seconds, from 0 on."""
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not is_number or not 0 <= value < threading.TIMEOUT_MAX:
        raise error(f"{name} must be a number of seconds from 0 on, found {value!r}.")
    return float(value)


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
