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


def workers_text(count: int) -> str:
    """Return such as "1 worker" or "2 workers"."""
    return f"{count} worker{'' if count == 1 else 's'}"


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
            _give_up(to)


def flush() -> None:
    """Write what is left, before this process ends; what cannot be written is dropped."""
    for stream in (sys.stdout, sys.stderr):
        if stream and not stream.closed:
            try:
                stream.flush()
            except OSError:  # such as a full disk
                _give_up(stream)


def _give_up(stream: TextIO) -> None:
    # Python would try to write again at exit, and exit with 120 when that fails:
    # https://docs.python.org/3/library/signal.html#note-on-sigpipe
    with open(os.devnull, "wb") as null:
        os.dup2(null.fileno(), stream.fileno())
