"""Waits for something outside of this process: each has a limit, and says what it waited for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, TypeVar

from mirrorkit.errors import FileError

T = TypeVar("T")


def within(what: str, seconds: float | None, call: Callable[..., T], *args: Any, **options: Any) -> T:
    """Return what a call returns, or raise what it raises; its thread is left alone where that takes too long.

    Raises:
        FileError: `what` has not answered.
    """
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(call(*args, **options))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True, name="mirrorkit-wait").start()  # nothing else ends a call that hangs
    if not wait([future], seconds).done:
        raise FileError(
            f"{what} has not answered for {seconds:g} s. Check the network, the file system or the server behind it, "
            "and variables that name a server, such as AWS_ENDPOINT_URL."
        )
    return future.result()
