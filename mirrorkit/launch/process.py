"""A script of a job in its own process group, which does not outlive the process that has started it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from mirrorkit import subprocesses
from mirrorkit.journal import JOURNAL

Tell = Callable[[str, Any], None]  # is given what has happened, and a line or an exit code
ROOM = "room"  # what a job is told, beside this, where there is room for another number of workers
CALL = "MIRRORKIT_CALL"  # the environment variable with the path to which the task of a function writes its result
_KEEPER = Path(__file__).with_name("keeper.py")
_LONGEST_LINE = 2**16  # bytes; a longer line is printed as several


class Process:
    """A script, or another command, that runs until it exits or is ended.

    Args:
        command: the program and its arguments.
        environment: its variables. JOURNAL and CALL become the path of a named pipe where they are "".
        tell: is given, in threads, ("out", line) and ("err", line) that it prints, ("note", line) that it writes into
            the pipe, and last ("exit", exit code): 128 + n where signal n killed it.
        folder: where it starts.
        stdin: what it reads.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        tell: Tell,
        folder: str | None = None,
        stdin: int | IO[bytes] = subprocess.DEVNULL,
    ) -> None:
        subprocesses.open_standard_streams()
        self._tell, self._telling, self._has_ended = tell, threading.Lock(), False
        self._own, pipe = "", ""
        named = [name for name in (JOURNAL, CALL) if environment.get(name) == ""]
        if named:
            self._own = tempfile.mkdtemp(prefix="mirrorkit-")
            pipe = os.path.join(self._own, "pipe")
            os.mkfifo(pipe)
        lifeline, *self._open = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_KEEPER), str(lifeline), self._own, *command],
                env={**environment, **dict.fromkeys(named, pipe)},
                start_new_session=True,
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=(lifeline,),
                cwd=folder,
            )
        except BaseException:
            self._let_go()
            raise
        finally:
            os.close(lifeline)
        streams: dict[str, Any] = {"out": self._process.stdout, "err": self._process.stderr}
        if named:
            # Opened to read and write it waits for nobody, and until it is closed the pipe has no end.
            self._open.append(os.open(pipe, os.O_RDWR))
            streams["note"] = os.fdopen(os.open(pipe, os.O_RDONLY), "rb")
        self._readers = [threading.Thread(target=self._read, args=pair, daemon=True) for pair in streams.items()]
        self._waiter = threading.Thread(target=self._wait, daemon=True)
        for thread in (*self._readers, self._waiter):
            thread.start()

    def send(self, number: int) -> None:
        """Send a signal to the script and all that it started."""
        subprocesses.send(self._process, number)

    def wait(self, seconds: float) -> None:
        """Wait until the script has exited, at most so long."""
        self._waiter.join(seconds)

    def end(self) -> None:
        """Kill the script and wait until it has exited."""
        self.send(signal.SIGKILL)
        self._waiter.join()

    def _wait(self) -> None:
        code = self._process.wait()
        self.send(signal.SIGKILL)  # processes that the script started and left running
        self._let_go()
        for reader in self._readers:
            reader.join(2)  # a process that left the group may hold the pipe open forever, and go on writing
        with self._telling:  # Python cannot exit while a thread writes
            self._has_ended = True
        self._tell("exit", code if code >= 0 else 128 - code)

    def _let_go(self) -> None:
        shutil.rmtree(self._own, ignore_errors=True)
        for descriptor in self._open:
            os.close(descriptor)

    def _read(self, kind: str, stream: IO[bytes]) -> None:
        longest = -1 if kind == "note" else _LONGEST_LINE
        with stream:
            while line := stream.readline(longest):
                with self._telling:
                    if self._has_ended:
                        break
                    self._tell(kind, line.decode(errors="replace").rstrip("\r\n"))
