"""Objects that live in Python processes of their own and are called from here.

```python
with Remote("statistics:NormalDist", Member({"mu": 3.0})) as remote:
    remote.call("quantiles", n=4)
```

A benchmark gives every contender a process: its own device layout and threads, compiled once, measured in turns with
the others. Processes are ended with the one that started them.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from typing_extensions import Self

from mirrorkit.errors import MirrorkitError
from mirrorkit.whole import is_whole


@dataclass(frozen=True)
class Member:
    """One process of a `Remote`.

    Attributes:
        arguments: keyword arguments with which its object is made; whatever JSON can hold.
        environment: variables on top of this process's own.
        core: the only core that it may use, as a position among those of this process.
        answers: whether its object is made and called; or the process only serves the others, as a parameter server.
    """

    arguments: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    core: int | None = None
    answers: bool = True


class Remote:
    """The same object in one process, or in each of several that work together.

    The processes start at once; `ready()` waits until their objects are made.

    Args:
        target: "module:class", or a function that returns an object.
        *members: the processes.
        timeout: seconds to wait for an answer.
    """

    def __init__(self, target: str, *members: Member, timeout: float = 900.0) -> None:
        self._timeout = timeout
        self._target = target
        self._folder = tempfile.TemporaryDirectory(prefix="mirrorkit-")
        members = members or (Member(),)
        self._processes = [self._start(i, member) for i, member in enumerate(members)]
        self._answering = [i for i, member in enumerate(members) if member.answers]
        self._is_ready = False

    def _start(self, index: int, member: Member) -> subprocess.Popen[bytes]:
        path = [str(Path(__file__).resolve().parents[2]), *(entry or os.getcwd() for entry in sys.path)]
        environment = {
            "TF_CPP_MIN_LOG_LEVEL": "2",
            **os.environ,
            **member.environment,  # perhaps all that is in this process's own
            "TMPDIR": self._folder.name,  # a killed process cannot remove its own temporary files
            "PYTHONPATH": os.pathsep.join(path),
        }
        with open(self._log(index), "wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "mirrorkit.bench.serve"],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        self._send(process, target=self._target, arguments=dict(member.arguments), core=member.core)
        return process

    def _log(self, index: int) -> Path:
        return Path(self._folder.name, f"stderr-{index}")

    def ready(self) -> Self:
        """Wait until the object is made in every process.

        Raises:
            MirrorkitError: in one of them it could not be made.
        """
        if not self._is_ready:
            self._answers()
            self._is_ready = True
        return self

    def call(self, method: str, **arguments: Any) -> Any:
        """Call a method in every process at the same time, wait for all, and return what the first one returned.

        Raises:
            MirrorkitError: it failed in one of them.
        """
        self.ready()
        for i in self._answering:
            self._send(self._processes[i], call=method, arguments=arguments)
        return self._answers()[0]

    def _send(self, process: subprocess.Popen[bytes], **message: Any) -> None:
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has died, which the missing answer will tell
            process.stdin.write(json.dumps(message).encode() + b"\n")
            process.stdin.flush()

    def _answers(self) -> list[Any]:
        deadline = time.monotonic() + self._timeout
        answers: dict[int, Any] = {}
        pipes: dict[Any, int] = {self._processes[i].stdout: i for i in self._answering}
        # In the order of their coming: when one fails, the others may wait for it for ever.
        while len(answers) < len(pipes):
            waiting = [pipe for pipe, i in pipes.items() if i not in answers]
            ready, _, _ = select.select(waiting, [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise MirrorkitError(f"{self._target} gave no answer within {self._timeout:g} s.")
            for pipe in ready:
                line = pipe.readline()
                answers[pipes[pipe]] = self._read(line, pipes[pipe])
        return [answers[i] for i in self._answering]

    def _read(self, line: bytes, index: int) -> Any:
        answer = json.loads(line) if line else {"error": f"the process ended with {self._processes[index].wait()}"}
        if "error" in answer:
            end = self._log(index).read_text(errors="replace")[-3000:]
            raise MirrorkitError(f"{self._target} failed: {answer['error']}\nEnd of its stderr:\n{end}")
        return answer["value"]

    def end(self) -> None:
        """End the processes; whatever they started is ended with them."""
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        self._folder.cleanup()

    def __enter__(self) -> Self:
        """Nothing is left to start."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the processes."""
        self.end()


@dataclass
class Turns:
    """What one of several contenders answered, turn by turn, or why it could not."""

    answers: list[Any] = field(default_factory=list)
    error: str | None = None


def in_turns(subjects: Mapping[str, Callable[[], Any]], repeats: int, *, until: float = math.inf) -> dict[str, Turns]:
    """Call each, one after the other, `repeats` times over: A B C A B C. After `until` (`time.monotonic`) only the
    first round begins.

    The speed of a machine changes within minutes (clock rate, other programs), so what is to be compared is measured in
    turns. Who raises a `MirrorkitError` gets no more turns.

    Raises:
        MirrorkitError: fewer than one turn.
    """
    if not is_whole(repeats):
        raise MirrorkitError(f"{repeats!r} measurements of each were asked for; it must be a whole number from 1 on.")
    turns = {name: Turns() for name in subjects}
    for number in range(repeats):
        if number and time.monotonic() > until:
            break
        for name, call in subjects.items():
            if turns[name].error is None:
                try:
                    turns[name].answers.append(call())
                except MirrorkitError as error:
                    turns[name].error = str(error)
    return turns
