"""What runs on a node of a Ray cluster: an actor that holds the room of one worker, and starts its tasks.

The class is an ordinary one until the launcher makes an actor of it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from mirrorkit.cluster import free_ports
from mirrorkit.journal import JOURNAL
from mirrorkit.launch.task import Task

CALL = "MIRRORKIT_CALL"  # the environment variable with the path of a pickled function
RESULT = "result"  # the name of the file beside it, for what it returned
_FOLDER = "mirrorkit-slot-"  # beginning of the name of a task's folder; then comes the process of its actor
_LONGEST_WAIT = 1.0  # seconds, of `read` for news
_MOST_LINES = 10_000  # that wait to be read; then the script waits to print, as at a full pipe


class News(NamedTuple):
    """What a task has printed and written into its journal, and how it ended."""

    lines: Sequence[tuple[str, str]]  # ("out", "err" or "journal", line)
    code: int | None  # once there are no more lines
    result: bytes | None  # of a function


class Slot:
    """Room for one worker: of each attempt it runs one task.

    Its methods run in threads: `stay` and `read` wait in theirs while others are called.
    """

    def __init__(self) -> None:
        self._news = threading.Condition()
        self._task: Task | None = None
        self._code: int | None = None
        self._result: bytes | None = None

    def address(self) -> str:
        """Return the address of the node."""
        import ray

        return str(ray.util.get_node_ip_address())

    def stay(self) -> None:
        """Never return: Ray fails the call when this process has ended."""
        threading.Event().wait()

    def free_port(self) -> int:
        """Return a port of this node at which nothing listens now."""
        return free_ports(1)[0]

    def start(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], folder: str, call: bytes | None
    ) -> None:
        """Start a task.

        Args:
            name: of the task.
            command: Python's arguments.
            environment: variables, beside those of the node.
            folder: where it starts; where the node has no such folder, it starts in that of the actor.
            call: the pickled function that the command runs, if it runs one.
        """
        self._lines: list[tuple[str, str]] = []
        self._first = 0  # number of the first of them
        self._code = self._result = None
        _remove_left_folders()
        self._own, self._journal = Path(tempfile.mkdtemp(prefix=f"{_FOLDER}{os.getpid()}-")), 0
        added = {CALL: str(self._own / "call"), JOURNAL: str(self._own / "journal")}
        if call is not None:
            (self._own / "call").write_bytes(call)
        given = {**os.environ, **environment, **{key: value for key, value in added.items() if key in environment}}
        if call is not None:  # what the function imports may lie where Ray's driver finds it: beside its script
            given["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        where = Path(folder) if os.path.isdir(folder) else None
        try:
            self._task = Task(name, [sys.executable, *command], given, self, tell=self._tell, folder=where)
        except OSError:
            shutil.rmtree(self._own, ignore_errors=True)
            raise

    def send(self, number: int, started: None) -> None:
        """Send a signal to the task; `started` is what `start` returned, without which Ray does not call this."""
        assert self._task is not None
        self._task.send(number)

    def read(self, seen: int) -> News:
        """Return what is new after so many lines, if need be after a wait; what was seen is forgotten."""
        with self._news:
            self._news.wait_for(lambda: self._code is not None or self._first + len(self._lines) > seen, _LONGEST_WAIT)
            self._read_journal()
            seen = max(seen, self._first)  # a call may come late
            del self._lines[: seen - self._first]
            self._first = seen
            self._news.notify_all()
            return News(tuple(self._lines), None if self._lines else self._code, self._result)

    def put(self, event: Any) -> None:
        """Take the end of the task."""
        result = None
        with contextlib.suppress(OSError):
            result = (self._own / RESULT).read_bytes()
        with self._news:
            self._read_journal()
            self._code, self._result = event[1], result
            shutil.rmtree(self._own, ignore_errors=True)
            self._news.notify_all()

    def _tell(self, name: str, line: str, to: TextIO) -> None:
        with self._news:
            self._news.wait_for(lambda: len(self._lines) < _MOST_LINES)
            self._lines.append(("err" if to is sys.stderr else "out", line))
            self._news.notify_all()

    def _read_journal(self) -> None:
        with contextlib.suppress(OSError), open(self._own / "journal") as file:
            file.seek(self._journal)
            while (line := file.readline()).endswith("\n"):
                self._journal += len(line)
                self._lines.append(("journal", line.rstrip("\n")))


def _remove_left_folders() -> None:
    """Remove what actors that were killed have left on this node."""
    for path in Path(tempfile.gettempdir()).glob(f"{_FOLDER}*"):
        pid = path.name.removeprefix(_FOLDER).partition("-")[0]
        if pid.isdecimal() and not Path("/proc", pid).exists() and Path("/proc").exists():
            shutil.rmtree(path, ignore_errors=True)
