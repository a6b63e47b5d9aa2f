"""Start all tasks of a job on this machine, watch them, end them together, and start them again where asked."""

from __future__ import annotations

import contextlib
import math
import os
import queue
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any

from mirrorkit import stop_signals
from mirrorkit.cluster import outside_interfaces
from mirrorkit.errors import ArgumentError, ClusterError, JobError
from mirrorkit.journal import JOURNAL
from mirrorkit.launch import isolation, layout
from mirrorkit.launch.progress import Progress
from mirrorkit.launch.slots import Slots
from mirrorkit.launch.task import Task, say
from mirrorkit.launch.widths import LONGEST_WAIT, Widths, least_and_most
from mirrorkit.whole import whole_number

_SIGNALS = (signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else []))  # not on Windows
# After a failure the others cannot go on; this is the time they have to print their errors.
_SECONDS_AFTER_FAILURE = 5.0
_SECONDS_OF_A_LOOK = 0.2  # at the journal


def launch(
    script: str | Path,
    arguments: Sequence[str] = (),
    *,
    workers: int | tuple[int, int],
    ps: int = 0,
    chief: bool = False,
    max_restarts: int = 0,
    slots: str | None = None,
    wait: float = 300.0,
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

    With `workers=(1, 4)` the number of workers may change while the job runs. It starts with the most. Where a failure
    leaves no restart, the job goes on with one worker less, down to the least. With `slots` there are never more
    workers than it says: it is looked up every few seconds, and at SIGHUP, which then is not passed on. Where their
    number changes, all tasks get SIGTERM, at which `mk.train.Checkpoints` saves, and the job starts again with the new
    number; that is no failure. Every `Loop.fit` of such a job needs `Checkpoints`. When a training goes on, a line says
    after how many seconds, and how many steps were made again.

    TensorFlow's servers listen at all interfaces of this machine and ask nobody who they are; a warning says so. With
    `isolate` the tasks run in a network namespace of their own, where there is no other interface than loopback: they
    reach each other, and nobody else reaches them or is reached.

    Args:
        script: a Python file, or the name of a module.
        arguments: what it finds in `sys.argv[1:]`.
        workers: number of workers, or the least and the most.
        ps: number of parameter servers; adds a chief, which coordinates. When it exits, the job ends.
        chief: whether to add a chief, which trains as the first of the workers.
        max_restarts: how often to start the job, or a worker of one with parameter servers, again after a failure.
        slots: for how many workers there is room: a file with the number, or a command that prints it.
        wait: seconds to wait where there is no room for the least number of workers.
        devices_per_worker: "cpu", or "gpu:1" for one GPU each; None divides the GPUs where there are enough.
        grace: seconds between a signal that is passed on and SIGKILL.
        module: whether `script` is a module, as in `python -m module`.
        isolate: whether the tasks have a network of their own. Linux alone, and where the kernel allows it.

    Returns:
        0, or the exit code of the task that failed first; 128 + n when signal n killed it.

    Raises:
        JobError: no such script, no worker, or for too long no room for enough of them.
        ClusterError: not enough GPUs, a system without process groups (Windows), or `isolate` where the kernel refuses.
        ArgumentError: called from another thread than the main one.
    """
    if not hasattr(os, "killpg"):
        raise ClusterError("launch needs process groups and POSIX signals, which this system lacks. Use Linux or WSL.")
    if not module and not Path(script).is_file():
        raise JobError(f"There is no script {str(script)!r}. Name a Python file.")
    command = [sys.executable, *(["-m"] if module else []), str(script), *arguments]
    whole_number("max_restarts", max_restarts, JobError, least=0)
    for name, seconds in (("grace", grace), ("wait", wait)):
        if not 0 <= seconds < math.inf:
            raise JobError(f"{name} must be a number of seconds from 0 on, found {seconds!r}.")
    least, most = least_and_most(workers)
    if ps and least < most:
        raise JobError(f"ps={ps} was asked for with workers={workers}: such a job goes on without a worker anyway.")
    if slots is not None and least == most:
        raise JobError(f"slots={slots!r} needs the least and the most workers, such as workers=(1, {most}).")

    def environments(width: int) -> dict[str, dict[str, str]]:
        """Return the environment of each task, on ports that are free now."""
        tasks = layout.clusters(width, ps=ps, chief=chief)
        return layout.environments(tasks, devices_per_worker=devices_per_worker)

    with _signals() as events, isolation.namespaces(isolate) as namespaces, contextlib.ExitStack() as stack:
        room = None if slots is None else stack.enter_context(contextlib.closing(Slots(slots, events)))
        journals = None if least == most else stack.enter_context(tempfile.TemporaryDirectory(prefix="mirrorkit-"))
        if not isolate:
            _warn_of_servers()
        return _Job(
            command,
            events,
            namespaces,
            environments,
            Widths(least, most, room, wait),
            None if journals is None else Progress(Path(journals)),
            max_restarts,
            has_servers=ps > 0,
            grace=grace,
        ).run()


def _warn_of_servers() -> None:
    if outside := outside_interfaces():
        named = f"{', '.join(outside[:4])}{', ...' if len(outside) > 4 else ''}"
        warning = (
            f"warning: TensorFlow's servers in the tasks listen at all interfaces of this machine ({named}), without "
            "authentication: whoever reaches their ports can run operations, and read and write files, as this user. "
            "--isolate keeps them to this machine's tasks; or close the ports: docs/security.md"
        )
        say("launch", warning, sys.stderr)


@contextlib.contextmanager
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
    """The tasks of a job, which start and end together: once in each attempt."""

    command: Sequence[str]
    events: queue.SimpleQueue
    namespaces: Sequence[int]
    environments_of: Callable[[int], dict[str, dict[str, str]]]  # by the number of workers
    widths: Widths
    progress: Progress | None  # where the number of workers may change
    max_restarts: int
    _: KW_ONLY
    has_servers: bool
    grace: float
    restarts: int = 0  # of the job and of its workers together
    interrupted: int | None = None

    def run(self) -> int:
        """Start attempt after attempt until one ends well, or none may follow; return 0, or the code of the last."""
        while True:
            width = self.widths.next(self.events)
            if isinstance(width, signal.Signals):
                return 128 + width
            code = self._attempt(width)
            if self.interrupted or not (self._is_unfinished if self.is_resizing else code and self._goes_on()):
                return code

    def _attempt(self, width: int) -> int:
        """Start all tasks and wait until they have ended; return 0, or the exit code of the first failure."""
        self.width, self.environments = width, self.environments_of(width)
        if self.progress is not None:
            path = str(self.progress.begin(width))
            self.environments = {name: {**of, JOURNAL: path} for name, of in self.environments.items()}
        self.running: set[Task] = set()
        self.code: int | None = None  # of the first failure
        self.chief_has_exited = False
        self.is_resizing, self._is_unfinished = False, False  # whether to start again with other workers
        self.deadline: float | None = None  # when to kill what still runs
        try:
            for name in self.environments:
                self._start(name)
            while self.running:
                self._handle(self._next_event())
        finally:
            for task in self.running:
                task.end()
        if self.progress is not None:
            self.progress.stopped()
        return self.code or 0

    def may_restart(self, of: str = "") -> bool:
        """Count a restart and print that; return False where none is left."""
        if self.restarts >= self.max_restarts:
            return False
        self.restarts += 1
        say("launch", f"restart {self.restarts} of {self.max_restarts}{of}", sys.stderr)
        return True

    def _goes_on(self) -> bool:
        """Return whether another attempt follows a failure, if need be with fewer workers."""
        if self.may_restart():
            return True
        if not self.widths.lose(self.width):
            return False
        say("launch", f"no restart is left: on with {self.widths.wanted} of {self.width} workers", sys.stderr)
        return True

    def _start(self, name: str) -> None:
        self.running.add(Task(name, self.command, self.environments[name], self.events, self.namespaces))

    def _next_event(self) -> Any:
        while True:
            waits = [LONGEST_WAIT]
            if self.deadline is not None:
                waits.append(max(0.0, self.deadline - time.monotonic()))
            if self.progress is not None and self.progress.is_pending:
                self.progress.look()
                waits.append(_SECONDS_OF_A_LOOK)
            try:
                return self.events.get(timeout=min(waits))
            except queue.Empty:
                if self.deadline is not None and time.monotonic() >= self.deadline:
                    return signal.SIGKILL

    def _handle(self, event: Any) -> None:
        if isinstance(event, tuple):
            self._ended(*event)
        elif self.widths.takes(event):
            self._resize()
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
        if self.is_resizing and not self.interrupted:
            self._is_unfinished |= code != 0
        elif code != 0:
            if not self.interrupted and self._goes_on_without(task, code):
                return
            self.code = code
            if not self.interrupted:
                if self.progress is not None:
                    self.progress.noticed()
                others = "; ending the others" if self.running else ""
                say("launch", f"{task.name} ended with {_described(code)}{others}", sys.stderr)
                self._end_all(signal.SIGTERM, _SECONDS_AFTER_FAILURE)
        elif self.has_servers and task.name == "chief":  # the others only serve it
            self.chief_has_exited = True
            self._end_all(signal.SIGTERM, _SECONDS_AFTER_FAILURE)

    def _resize(self) -> None:
        """End all tasks, to start them again, where there is room for another number of workers."""
        wanted = self.widths.wanted
        if wanted == self.width or self.is_resizing or self.interrupted or self.code is not None:
            return
        say("launch", f"room for {wanted} workers: ending {self.width}, which save", sys.stderr)
        self.is_resizing = True
        if self.progress is not None:
            self.progress.noticed()
        self._end_all(signal.SIGTERM, self.grace)

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
