"""Waits for something outside of this process: each has a limit, and says what it waited for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

from mirrorkit.errors import FileError

T = TypeVar("T")


def within(what: str, seconds: float | None, call: Callable[[], T]) -> T:
    """Return what a call returns, or raise what it raises; its thread is left alone where that takes too long.

    Raises:
        FileError: `what` has not answered.
    """
    future = started(call)
    if not wait([future], seconds).done:
        raise FileError(
            f"{what} has not answered for {seconds:g} s. Check the network, the file system or the server behind it, "
            "and variables that name a server, such as AWS_ENDPOINT_URL."
        )
    return future.result()


def started(call: Callable[[], T]) -> Future[T]:
    """Return what a call will return, in a thread of its own: nothing ends a call that hangs."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True, name="mirrorkit-wait").start()
    return future
