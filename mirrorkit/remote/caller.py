"""Objects that live in Python processes of their own and are called from here.

```python
with Remote("statistics:NormalDist", Member({"mu": 3.0})) as remote:
    remote.call("quantiles", n=4)
```

A benchmark gives every contender a process: its own device layout and threads, compiled once, measured in turns with
the others. The processes end with the one that started them. They are not `multiprocessing.Process`es, which would run
a user's script again, and take their environment variables too late for TensorFlow.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any

from mirrorkit import subprocesses
from mirrorkit.errors import MirrorkitError


@dataclass(frozen=True)
class Member:
    """One process of a `Remote`."""

    arguments: Mapping[str, Any] = field(default_factory=dict)  # keyword arguments of its object; they are pickled
    environment: Mapping[str, str] = field(default_factory=dict)  # variables on top of this process's own
    core: int | None = None  # the only core that it may use, as a position among those of this process
    answers: bool = True  # or it only serves the others, as a parameter server does


class Remote(contextlib.AbstractContextManager["Remote"]):
    """The same object in one process, or in each of several that work together; the processes start at once.

    "module:class" or "module:function" as `target` makes the object; "module" is one itself. `timeout` is the number of
    seconds to wait for an answer.
    """

    def __init__(self, target: str, *members: Member, timeout: float = 900.0) -> None:
        self._target = target
        self._timeout = timeout
        self._ended = False
        self._folder = tempfile.TemporaryDirectory(prefix="mirrorkit-")
        members = members or (Member(),)
        self._processes, self._connections = zip(*(self._start(i, m) for i, m in enumerate(members)), strict=True)
        self._answering = [i for i, member in enumerate(members) if member.answers]

    def _start(self, index: int, member: Member) -> tuple[subprocess.Popen[bytes], Connection]:
        path = [entry or os.getcwd() for entry in sys.path]
        environment = {
            "TF_CPP_MIN_LOG_LEVEL": "2",
            **os.environ,
            **member.environment,  # perhaps all that is in this process's own
            "TMPDIR": self._folder.name,  # a killed process cannot remove its own temporary files
            "PYTHONPATH": os.pathsep.join(path),
        }
        ours, theirs = Pipe()
        with theirs, open(self._log(index), "wb") as log:
            process = subprocesses.start(
                [sys.executable, "-m", "mirrorkit.remote.serve", str(theirs.fileno()), self._folder.name],
                environment=subprocesses.with_mirrorkit(environment),
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._send(ours, (self._target, dict(member.arguments), member.core))
        return process, ours

    def _log(self, index: int) -> Path:
        return Path(self._folder.name, f"log-{index}")

    def call(self, method: str, **arguments: Any) -> Any:
        """Call a method in every process at the same time, wait for all, and return what the first one returned.

        A MirrorkitError says that it failed in one of them, or that the object could not be made.
        """
        for i in self._answering:
            self._send(self._connections[i], (method, arguments))
        deadline = time.monotonic() + self._timeout
        answers: dict[int, Any] = {}
        # As they come: when one process fails, the others may wait for it forever.
        while missing := {self._connections[i]: i for i in self._answering if i not in answers}:
            ready = wait(list(missing), max(0.0, deadline - time.monotonic()))
            if not ready:
                raise MirrorkitError(f"{self._target} gave no answer within {self._timeout:g} s.")
            answers |= {i: self._receive(i) for connection, i in missing.items() if connection in ready}
        return answers[self._answering[0]]

    def _send(self, connection: Connection, message: Any) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it has died: the missing answer will tell
            connection.send(message)

    def _receive(self, index: int) -> Any:
        try:
            value, error = self._connections[index].recv()
        except (EOFError, ConnectionResetError):
            value, error = None, f"the process ended with {self._processes[index].wait()}"
        if error is not None:
            end = self._log(index).read_text(errors="replace")[-3000:]
            raise MirrorkitError(f"{self._target} failed: {error}\nEnd of its output:\n{end}")
        return value

    def end(self) -> None:
        """End the processes and whatever they started; a call that waits for them in another thread fails."""
        if not self._ended:  # or the number of a process may be another's
            for process in self._processes:
                subprocesses.send(process)
            for process in self._processes:
                process.wait()
        self._ended = True

    def __exit__(self, *_: object) -> None:
        """End the processes and whatever they started."""
        self.end()
        for connection in self._connections:
            connection.close()
        self._folder.cleanup()
