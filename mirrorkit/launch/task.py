"""One task of a job: a script in its own process group, whose lines are printed with the task's name in front."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Protocol, TextIO

from mirrorkit import subprocesses

_KEEPER = Path(__file__).with_name("keeper.py")
_NOBODY_READS = (errno.EPIPE, errno.EIO)  # of a pipe, and of a terminal that was closed
_print = threading.Lock()


class Events(Protocol):
    """Where a task says that it has exited."""

    def put(self, event: Any, /) -> None:
        """Take an event."""


class Task:
    """A script that runs until it exits or is ended; the name goes in front of each line that it prints.

    When it exits, `(task, exit code)` is put into `events`; the exit code is 128 + n where signal n killed it.
    `tell` is given the name, each line, and the stream.
    """

    is_lost = False  # see `job.Running`

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        events: Events,
        tell: Callable[[str, str, TextIO], None] | None = None,
        folder: Path | None = None,
    ) -> None:
        self.name = name
        self._events, self._tell = events, tell or say
        self._printing, self._ended = threading.Lock(), False
        lifeline, self._lifeline = os.pipe()
        try:
            self._process = subprocesses.start(
                [sys.executable, "-I", "-S", str(_KEEPER), str(lifeline), *command],
                environment=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=(lifeline,),
                cwd=folder,
            )
        finally:
            os.close(lifeline)
        streams = ((self._process.stdout, sys.stdout), (self._process.stderr, sys.stderr))
        self._readers = [threading.Thread(target=self._pass_on, args=pair, daemon=True) for pair in streams]
        self._waiter = threading.Thread(target=self._wait, daemon=True)
        for thread in (*self._readers, self._waiter):
            thread.start()

    def send(self, number: int) -> None:
        """Send a signal to the script and all that it started."""
        subprocesses.send(self._process, number)

    def end(self) -> None:
        """Kill the script and wait until it has exited."""
        self.send(signal.SIGKILL)
        self._waiter.join()

    def _wait(self) -> None:
        code = self._process.wait()
        self.send(signal.SIGKILL)  # processes that the script started and left running
        for reader in self._readers:
            reader.join(2)  # a process that left the group may hold the pipe open forever, and go on writing
        with self._printing:  # Python cannot exit while a thread writes
            self._ended = True
        os.close(self._lifeline)
        self._events.put((self, code if code >= 0 else 128 - code))

    def _pass_on(self, pipe: IO[bytes], to: TextIO) -> None:
        with pipe:
            for line in pipe:
                with self._printing:
                    if self._ended:
                        break
                    self._tell(self.name, line.decode(errors="replace").rstrip("\r\n"), to)


def say(name: str, text: str, to: TextIO) -> None:
    """Print a line with a task's name in front; lines of several tasks do not mix."""
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
