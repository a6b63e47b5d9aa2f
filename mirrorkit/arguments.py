"""Checks of arguments: numbers, switches, strings, paths, functions, strategies. NumPy's numbers count as Python's."""

from __future__ import annotations

import functools
import inspect
import math
import numbers
import operator
import os
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


def is_number(value: Any) -> bool:
    """Return whether `value` is a real number; True and False are none."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def seconds(name: str, value: Any, error: type[MirrorkitError]) -> float:
    """Return an argument that is a number of seconds, from 0 on."""
    if not is_number(value) or not 0 <= value < threading.TIMEOUT_MAX:
        raise error(f"{name} must be a number of seconds from 0 on, found {value!r}.")
    return float(value)


def require_kinds(kinds: Mapping[str, Any], values: Mapping[str, Any], error: type[MirrorkitError]) -> None:
    """Refuse an argument that is not of its kind, its annotation; one of a kind that is not known passes."""
    for name, value in values.items():
        kind = str(kinds.get(name))
        if value is None and kind.endswith(" | None"):
            continue
        kind = kind.removesuffix(" | None")
        known = _KINDS.get(kind) or _KINDS.get(kind.partition("[")[0])
        if known and not known[1](value):
            raise error(f"{name} must be {known[0]}, found {value!r}.")


def checks_arguments(error: type[MirrorkitError]) -> Callable[[F], F]:
    """Have a function refuse arguments that are not of the kind of their annotations; see `require_kinds`."""

    def decorate(function: F) -> F:
        kinds = {name: one.annotation for name, one in inspect.signature(function).parameters.items()}

        @functools.wraps(function)
        def checked(*args: Any, **options: Any) -> Any:
            given = {**dict(zip(kinds, args, strict=False)), **options}
            require_kinds(kinds, given, error)
            return function(*args, **options)

        return checked  # type: ignore[return-value]

    return decorate


_PATH = ("a path", lambda value: isinstance(value, (str, os.PathLike)))
_FUNCTION = ("a function", callable)
# By annotation: the words for it, and whether a value is one.
_KINDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    # NumPy's switches are called "bool_" before NumPy 2
    "bool": ("True or False", lambda value: type(value).__name__ in ("bool", "bool_")),
    "int": ("a whole number", lambda value: is_whole(value, -math.inf)),
    "float": ("a number", lambda value: is_number(value) or hasattr(value, "assign")),
    "str": ("a string", lambda value: isinstance(value, str)),
    "str | os.PathLike[str]": _PATH,
    "str | Path": _PATH,
    "Callable": _FUNCTION,
    "MapFunction": _FUNCTION,
    "Mapping": ("a dict", lambda value: isinstance(value, Mapping)),
    "tf.data.Dataset | Recipe": ("a tf.data.Dataset or a recipe", lambda value: hasattr(value, "element_spec")),
    "tf.distribute.Strategy": ("a tf.distribute.Strategy", lambda value: hasattr(value, "scope")),
}
