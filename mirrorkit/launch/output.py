"""What the launcher prints: its own lines, and those of its tasks with their names in front."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import threading
from typing import TextIO

_NOBODY_READS = (errno.EPIPE, errno.EIO)  # of a pipe, and of a terminal that was closed
_print = threading.Lock()


def tell(text: str) -> None:
    """Print a line of the launcher."""
    say("launch", text, sys.stderr)


def say(name: str, text: str, to: TextIO | None) -> None:
    """Print a line with a task's name in front, if the stream is open; lines of several tasks do not mix."""
    if to is None:
        return
    with _print, contextlib.suppress(OSError, ValueError):
        try:
            to.write(f"{name} | {text}\n")
            to.flush()
        except OSError as error:
            if error.errno not in _NOBODY_READS:
                raise
            _discard_what_follows(to)


def _discard_what_follows(to: TextIO) -> None:
    """Open the null device in place of a stream that nobody reads.

    What Python could not write stays in its buffer. It would try again at exit, and exit with 120 when that fails:
    https://docs.python.org/3/library/signal.html#note-on-sigpipe
    """
    null = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, to.fileno())
    finally:
        os.close(null)
