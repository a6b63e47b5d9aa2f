"""Start all tasks of a job on this machine, watch them, end them together, and start them again where asked."""

from __future__ import annotations

import math
import os
import queue
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any

from mirrorkit import stop_signals
from mirrorkit.cluster import outside_interfaces
from mirrorkit.errors import ArgumentError, ClusterError, JobError
from mirrorkit.launch import isolation, layout
from mirrorkit.launch.task import Task, say
from mirrorkit.whole import whole_number

_SIGNALS = (signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else []))  # not on Windows
# After a failure the others cannot go on; this is the time they have to print their errors.
_SECONDS_AFTER_FAILURE = 5.0


def launch(
    script: str | Path,
    arguments: Sequence[str] = (),
    *,
    workers: int,
    ps: int = 0,
    chief: bool = False,
    max_restarts: int = 0,
    devices_per_worker: str | None = None,
    grace: float = 30.0,
    module: bool = False,
    isolate: bool = False,
) -> int:
    """Run a Python script once for every task of a cluster on this machine, and return its exit code.

    When a task fails, the others are ended: SIGTERM, and SIGKILL 5 s later, since TensorFlow swallows SIGTERM. Then the
    whole job is started again on new ports, up to `max_restarts` times; a script that keeps checkpoints goes on from
    there. SIGTERM, SIGHUP and Ctrl-C are passed on to every task, and nothing is started again; `grace` seconds later,
    or at the second such signal, tasks that still run are killed. No task outlives this process, not even when it is
    killed. Call it from the main thread.

    With parameter servers the job survives the failure of a worker: while the chief runs, that worker alone is started
    again at its address, which counts as one of the `max_restarts`. Where none is left the others go on without it, as
    long as there are any workers.

    TensorFlow's servers listen at all interfaces of this machine and ask nobody who they are; a warning says so. With
    `isolate` the tasks run in a network namespace of their own, where there is no other interface than loopback: they
    reach each other, and nobody else reaches them or is reached.

    Args:
        script: a Python file, or the name of a module.
        arguments: what it finds in `sys.argv[1:]`.
        workers: number of workers.
        ps: number of parameter servers; adds a chief, which coordinates. When it exits, the job ends.
        chief: whether to add a chief, which trains as the first of the workers.
        max_restarts: how often to start the job, or a worker of one with parameter servers, again after a failure.
        devices_per_worker: "cpu", or "gpu:1" for one GPU each; None divides the GPUs where there are enough.
        grace: seconds between a signal that is passed on and SIGKILL.
        module: whether `script` is a module, as in `python -m module`.
        isolate: whether the tasks have a network of their own. Linux alone, and where the kernel allows it.

    Returns:
        0, or the exit code of the task that failed first; 128 + n when signal n killed it.

    Raises:
        JobError: no such script, or no worker.
        ClusterError: not enough GPUs, a system without process groups (Windows), or `isolate` where the kernel refuses.
        ArgumentError: called from another thread than the main one.
    """
    if not hasattr(os, "killpg"):
        raise ClusterError("launch needs process groups and POSIX signals, which this system lacks. Use Linux or WSL.")
    if not module and not Path(script).is_file():
        raise JobError(f"There is no script {str(script)!r}. Name a Python file.")
    command = [sys.executable, *(["-m"] if module else []), str(script), *arguments]
    whole_number("max_restarts", max_restarts, JobError, least=0)
    if not 0 <= grace < math.inf:
        raise JobError(f"grace must be a number of seconds from 0 on, found {grace!r}.")

    def environments() -> dict[str, dict[str, str]]:
        """Return the environment of each task, on ports that are free now."""
        return layout.environments(layout.clusters(workers, ps=ps, chief=chief), devices_per_worker=devices_per_worker)

    with _signals() as events, isolation.namespaces(isolate) as namespaces:
        if not isolate:
            _warn_of_servers()
        job = _Job(command, events, namespaces, max_restarts, has_servers=ps > 0, grace=grace)
        while True:
            code = job.run(environments())
            if code == 0 or job.interrupted or not job.may_restart():
                return code


def _warn_of_servers() -> None:
    if outside := outside_interfaces():
        named = f"{', '.join(outside[:4])}{', ...' if len(outside) > 4 else ''}"
        warning = (
            f"warning: TensorFlow's servers in the tasks listen at all interfaces of this machine ({named}), without "
            "authentication: whoever reaches their ports can run operations, and read and write files, as this user. "
            "--isolate keeps them to this machine's tasks; or close the ports: docs/security.md"
        )
        say("launch", warning, sys.stderr)


@contextmanager
def _signals() -> Iterator[queue.SimpleQueue]:
    """Turn signals to this process into events."""
    events: queue.SimpleQueue = queue.SimpleQueue()  # may be written to from a signal handler
    if not stop_signals.can_catch():
        raise ArgumentError("launch must be called from the main thread: only that one can pass signals on.")
    before = stop_signals.catch(_SIGNALS, lambda received, frame: events.put(received))
    try:
        yield events
    finally:
        stop_signals.put_back(before)


@dataclass
class _Job:
    """The tasks of a job, which start and end together, and how many restarts are left."""

    command: Sequence[str]
    events: queue.SimpleQueue
    namespaces: Sequence[int]
    max_restarts: int
    _: KW_ONLY
    has_servers: bool
    grace: float
    restarts: int = 0  # of the job and of its workers together
    interrupted: int | None = None

    def run(self, environments: dict[str, dict[str, str]]) -> int:
        """Start all tasks and wait until they have ended; return 0, or the exit code of the first failure."""
        self.environments = environments
        self.running: set[Task] = set()
        self.code: int | None = None  # of the first failure
        self.chief_has_exited = False
        self.deadline: float | None = None  # when to kill what still runs
        try:
            for name in environments:
                self._start(name)
            while self.running:
                self._handle(self._next_event())
        finally:
            for task in self.running:
                task.end()
        return self.code or 0

    def may_restart(self, of: str = "") -> bool:
        """Count a restart and print that; return False where none is left."""
        if self.restarts >= self.max_restarts:
            return False
        self.restarts += 1
        say("launch", f"restart {self.restarts} of {self.max_restarts}{of}", sys.stderr)
        return True

    def _start(self, name: str) -> None:
        self.running.add(Task(name, self.command, self.environments[name], self.events, self.namespaces))

    def _next_event(self) -> Any:
        try:
            left = None if self.deadline is None else max(0.0, self.deadline - time.monotonic())
            return self.events.get(timeout=left)
        except queue.Empty:
            return signal.SIGKILL

    def _handle(self, event: Any) -> None:
        if isinstance(event, tuple):
            self._ended(*event)
        elif event == signal.SIGKILL or self.interrupted:
            self._end_all(signal.SIGKILL, None)
        else:
            self.interrupted = event
            say("launch", f"{signal.Signals(event).name}: passed on to every task", sys.stderr)
            self._end_all(event, self.grace)

    def _ended(self, task: Task, code: int) -> None:
        self.running.discard(task)
        if self.chief_has_exited or self.code is not None:
            return
        if code != 0:
            if not self.interrupted and self._goes_on_without(task, code):
                return
            self.code = code
            if not self.interrupted:
                others = "; ending the others" if self.running else ""
                say("launch", f"{task.name} ended with {_described(code)}{others}", sys.stderr)
                self._end_all(signal.SIGTERM, _SECONDS_AFTER_FAILURE)
        elif self.has_servers and task.name == "chief":  # the others only serve it
            self.chief_has_exited = True
            self._end_all(signal.SIGTERM, _SECONDS_AFTER_FAILURE)

    def _goes_on_without(self, task: Task, code: int) -> bool:
        """Return whether the job survives this failure: that of a worker, whose variables are on parameter servers."""
        if not (self.has_servers and _is_worker(task)):
            return False
        if not (self.restarts < self.max_restarts or any(map(_is_worker, self.running))):
            return False
        say("launch", f"{task.name} ended with {_described(code)}; the others go on", sys.stderr)
        if self.may_restart(f": {task.name}"):
            self._start(task.name)
        return True

    def _end_all(self, number: int, grace: float | None) -> None:
        for task in self.running:
            task.send(number)
        self.deadline = None if grace is None else time.monotonic() + grace


def _is_worker(task: Task) -> bool:
    return task.name.startswith("worker")


def _described(code: int) -> str:
    if code > 128 and code - 128 in set(signal.Signals):
        return f"exit code {code} ({signal.Signals(code - 128).name})"
    return f"exit code {code}"
