"""Who may use a loop now: one thread of the process that made it, and no training within another."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from mirrorkit._keras import keras
from mirrorkit.errors import StepError
from mirrorkit.strategy import place, require_own_process
from mirrorkit.train.ambient import ambient

F = TypeVar("F", bound=Callable[..., Any])


class Entered:
    """Which methods of a loop are running, the outer ones first; only in one thread."""

    def __init__(self) -> None:
        require_own_process("mk.train.Loop")
        self._lock = threading.RLock()  # which a thread that has it may take again
        self._running: list[str] = []

    @contextlib.contextmanager
    def by(self, method: str, *, is_training: bool) -> Iterator[None]:
        """Run the block as this method of a loop, which `is_training` from the first epoch of a fit on.

        Raises:
            StepError: in a forked process, in another thread than what is running, or `fit` within anything.
        """
        require_own_process(f"Loop.{method}")
        with contextlib.ExitStack() as entered:
            if not self._lock.acquire(blocking=False):
                raise StepError(
                    f"Loop.{method} was called in the thread {threading.current_thread().name!r} while "
                    f"Loop.{'/'.join(self._running[:1])} of the same loop runs in another. Both would write the same "
                    "state. Call it after that has ended, or in a callback; or make another loop, with a model and a "
                    "step of its own."
                )
            entered.callback(self._lock.release)
            if self._running and (method == "fit" or (method == "restore" and is_training)):
                raise StepError(
                    f"Loop.{method} was called while Loop.{self._running[-1]} of the same loop runs, and would move "
                    "its position. Callbacks may call evaluate and predict. Call it after that has ended, or use "
                    "another loop with a step of its own."
                )
            ambient.policy[:] = [keras.config.dtype_policy()]
            self._running.append(method)
            entered.callback(self._running.pop)
            entered.enter_context(place(" within ".join(f"Loop.{name}" for name in reversed(self._running))))
            yield


def one_at_a_time(method: F) -> F:
    """Let a method of a loop be refused where another use of the loop excludes it."""

    @functools.wraps(method)
    def alone(self: Any, /, *args: Any, **options: Any) -> Any:
        with self._entered.by(method.__name__, is_training=self.running is not None):
            return method(self, *args, **options)

    return alone  # type: ignore[return-value]
