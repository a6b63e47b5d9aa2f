"""One task of a job: a script in its own process group, whose lines are printed with the task's name in front."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, TextIO

from mirrorkit import subprocesses

_KEEPER = Path(__file__).with_name("keeper.py")
_print = threading.Lock()


class Task:
    """A script that runs until it exits or is ended; the name goes in front of each line that it prints.

    `namespaces` are descriptors of the namespaces that it enters first. When it exits, `(task, exit code)` is put into
    `events`; the exit code is 128 + n where signal n killed it.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        events: queue.SimpleQueue,
        namespaces: Sequence[int] = (),
    ) -> None:
        self.name = name
        self._events = events
        lifeline, self._lifeline = os.pipe()
        try:
            self._process = subprocesses.start(
                [sys.executable, "-I", "-S", str(_KEEPER), str(lifeline), ",".join(map(str, namespaces)), *command],
                environment=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=(lifeline, *namespaces),
            )
        finally:
            os.close(lifeline)
        streams = ((self._process.stdout, sys.stdout), (self._process.stderr, sys.stderr))
        self._readers = [threading.Thread(target=_pass_on, args=(name, *pair), daemon=True) for pair in streams]
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
            reader.join(2)  # a process that left the group may hold the pipe open forever
        os.close(self._lifeline)
        self._events.put((self, code if code >= 0 else 128 - code))


def say(name: str, text: str, to: TextIO) -> None:
    """Print a line with a task's name in front; lines of several tasks do not mix."""
    with _print, contextlib.suppress(OSError, ValueError):  # nobody may be reading any more
        to.write(f"{name} | {text}\n")
        to.flush()


def _pass_on(name: str, pipe: IO[bytes] | None, to: TextIO) -> None:
    assert pipe is not None
    with pipe:
        for line in pipe:
            say(name, line.decode(errors="replace").rstrip("\r\n"), to)
