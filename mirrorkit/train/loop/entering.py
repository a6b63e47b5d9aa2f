"""Who may use a loop now: one thread of the process that made it, and no training within another."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any, Concatenate, ParamSpec, TypeVar

from mirrorkit.errors import StepError
from mirrorkit.strategy import place, require_own_process

P = ParamSpec("P")
R = TypeVar("R")


class Entered:
    """Which methods of a loop are running, the outer ones first; only in one thread."""

    def __init__(self) -> None:
        require_own_process("mk.train.Loop")
        self._lock = threading.Lock()
        self._thread = threading.current_thread()
        self._running: list[str] = []

    @contextlib.contextmanager
    def by(self, method: str, *, is_training: bool) -> Iterator[None]:
        """Run the block as this method of a loop, which `is_training` from the first epoch of a fit on.

        Raises:
            StepError: in a forked process, in another thread than what is running, or `fit` within anything.
        """
        require_own_process(f"Loop.{method}")
        with self._lock:
            here = threading.current_thread()
            if self._running and self._thread is not here:
                raise StepError(
                    f"Loop.{method} was called in the thread {here.name!r} while Loop.{self._running[0]} of the same "
                    f"loop runs in {self._thread.name!r}. Both would write the same state. Call it after that has "
                    "ended, or in a callback; or make another loop, with a model and a step of its own."
                )
            if self._running and (method == "fit" or (method == "restore" and is_training)):
                raise StepError(
                    f"Loop.{method} was called while Loop.{self._running[-1]} of the same loop runs, and would move "
                    "its position. Callbacks may call evaluate and predict. Call it after that has ended, or use "
                    "another loop with a step of its own."
                )
            self._thread = here
            self._running.append(method)
        try:
            with place(" within ".join(f"Loop.{name}" for name in reversed(self._running))):
                yield
        finally:
            self._running.pop()


def one_at_a_time(method: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
    """Let a method of a loop be refused where another use of the loop excludes it."""

    @functools.wraps(method)
    def alone(self: Any, /, *args: P.args, **options: P.kwargs) -> R:
        with self._entered.by(method.__name__, is_training=self.running is not None):
            return method(self, *args, **options)

    return alone
