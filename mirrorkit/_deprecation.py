"""Old names: they go on working for one release, and warn with the new name."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from mirrorkit.errors import ArgumentError

_END = "will be removed in mirrorkit 0.3"


def renamed(module: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a `__getattr__` for a module whose names have changed.

    ```python
    __getattr__ = renamed(__name__, {"DataSet": "mirrorkit.data.Splits"})
    ```

    Args:
        module: its `__name__`.
        names: for each old name the full new one, "mirrorkit.package.name". A new one in a private place, such as
            "mirrorkit.cluster.rendezvous.wait_for_all", still works, but the warning offers nothing in its place.
    """

    def get(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        home, _, new = names[name].rpartition(".")
        found = getattr(importlib.import_module(home), new)
        public = new in getattr(importlib.import_module(home), "__all__", ()) and home.count(".") <= 1
        advice = f"use {home}.{new}" if public else "it was never meant for other projects"
        warnings.warn(f"{module}.{name} is deprecated and {_END}: {advice}.", DeprecationWarning, stacklevel=2)
        return found

    return get


def old_argument(function: str, old: str, given: Any, new: str, value: Any) -> Any:
    """Return what was given for an argument under its old name or its new one; None where neither was.

    Args:
        function: for the messages, such as "mk.bench.scaling".
        old, given: the old name, and what it was given (None for nothing).
        new, value: the same of the new one.

    Raises:
        ArgumentError: both were given.
    """
    if given is None:
        return value
    if value is not None:
        raise ArgumentError(f"{function} was given both {new}= and {old}=, its old name. Give {new}= alone.")
    warnings.warn(f"{function}({old}=...) is deprecated and {_END}: use {new}=.", DeprecationWarning, stacklevel=3)
    return given
