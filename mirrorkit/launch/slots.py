"""How many workers there is room for, as a file or a command says, read again every few seconds."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
from pathlib import Path
from typing import Protocol

from mirrorkit.errors import JobError
from mirrorkit.launch.task import say

_SECONDS = 5.0  # between two looks
_LONGEST = 30.0  # of a command


class Room(Protocol):
    """For how many workers there is room. It puts itself into the events of a job when the number has changed.

    Attributes:
        count: of workers.
        problem: why there will be no more room; "" where there may be.
    """

    count: int
    problem: str

    def refresh(self) -> bool:
        """Look now; return whether the number has changed."""


class Slots:
    """A number of workers that is looked up by a thread, until `close`.

    Args:
        source: a file, which is read, or which is run where it is executable; or a command for the shell. The last
            line is the number.
        events: is given this object where the number has changed.

    Attributes:
        count: the last number that was found.
        problem: none; see `Room`.

    Raises:
        JobError: the first time there is no number.
    """

    problem = ""

    def __init__(self, source: str, events: queue.SimpleQueue) -> None:
        self._source, self._events = source, events
        self._wanted, self._lock = threading.Event(), threading.Lock()
        self._is_closed, self._has_failed = False, False
        self.count = self._read()
        threading.Thread(target=self._watch, daemon=True).start()

    def refresh(self) -> bool:
        """Look now; return whether the number has changed. Where there is none, it stays as it was."""
        with self._lock:
            before = self.count
            try:
                self.count = self._read()
                self._has_failed = False
            except JobError as error:
                if not self._has_failed:
                    say("launch", f"{error} It is taken for {before}, as before.", sys.stderr)
                self._has_failed = True
            return self.count != before

    def look(self) -> None:
        """Let the thread look now."""
        self._wanted.set()

    def close(self) -> None:
        """Look no more."""
        self._is_closed = True
        self._wanted.set()

    def _watch(self) -> None:
        while True:
            self._wanted.wait(_SECONDS)
            self._wanted.clear()
            if self._is_closed:
                return
            if self.refresh():
                self._events.put(self)

    def _read(self) -> int:
        path = Path(self._source)
        try:
            text = path.read_text() if path.is_file() and not os.access(path, os.X_OK) else self._printed(path)
        except (OSError, UnicodeDecodeError, subprocess.SubprocessError) as error:
            raise JobError(f"slots={self._source!r} gave no number of workers: {error}.") from error
        last = text.strip().rpartition("\n")[2].strip()
        if not last.isdecimal():
            raise JobError(f"slots={self._source!r} must give a number of workers in its last line, found {last!r}.")
        return int(last)

    def _printed(self, path: Path) -> str:
        command = str(path.absolute()) if path.is_file() else self._source
        options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "text": True, "check": True}
        return str(subprocess.run(command, shell=not path.is_file(), timeout=_LONGEST, **options).stdout)  # type: ignore[call-overload]
