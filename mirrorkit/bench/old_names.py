"""Old spellings of the benchmarks' arguments."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from mirrorkit._deprecation import old_argument

P = ParamSpec("P")
R = TypeVar("R")


def takes_old(**names: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let a function of `mk.bench` take arguments by old names too, with a warning: `@takes_old(device="devices")`."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def call(*arguments: P.args, **options: P.kwargs) -> R:
            name = f"mk.bench.{function.__name__}"
            for old, new in names.items():
                value = old_argument(name, old, options.pop(old, None), new, options.get(new))
                if value is not None:
                    options[new] = value
            return function(*arguments, **options)

        return call

    return decorate
