"""Signals that ask this process to stop, caught for a while and then put back."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any, NoReturn

Handler = Callable[[int, FrameType | None], None]


def can_catch() -> bool:
    """Return whether this is the main thread, the only one in which Python can catch signals."""
    return threading.current_thread() is threading.main_thread()


def catch(numbers: Iterable[int], handler: Handler) -> dict[int, Any]:
    """Let `handler` receive these signals, and return the handlers that it replaces, for `put_back`.

    A signal that the process ignores (SIGINT of a background job, SIGHUP under nohup) stays ignored. In any other
    thread than the main one this does nothing.
    """
    if not can_catch():
        return {}
    return {n: signal.signal(n, handler) for n in numbers if signal.getsignal(n) is not signal.SIG_IGN}


def leave(number: int, frame: FrameType | None) -> NoReturn:
    """End this process as Python ends one, with the exit code of a signal that killed it; a handler."""
    raise SystemExit(128 + number)


def put_back(before: dict[int, Any]) -> None:
    """Put back what `catch` replaced, and empty `before`, so that a second call does nothing."""
    while before:
        number, handler = before.popitem()
        # None: a handler that was not installed from Python, and that Python cannot put back
        signal.signal(number, signal.SIG_DFL if handler is None else handler)
