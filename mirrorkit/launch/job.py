"""A job: all its tasks, started together and ended together, attempt after attempt."""

from __future__ import annotations

import queue
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, Protocol

from mirrorkit.journal import JOURNAL
from mirrorkit.launch.progress import Progress
from mirrorkit.launch.task import say
from mirrorkit.launch.widths import LONGEST_WAIT, Widths, workers_text

# After a failure the others cannot go on; this is the time they have to print their errors.
_SECONDS_AFTER_FAILURE = 5.0
_SECONDS_OF_A_LOOK = 0.2  # at the journal


class Running(Protocol):
    """A task that was started. When it has exited, `(task, exit code)` is put into the events of its job.

    Attributes:
        name: of the task.
        is_lost: whether the room that it had is gone with it.
    """

    name: str
    is_lost: bool

    def send(self, number: int) -> None:
        """Send a signal to the script and all that it started."""

    def end(self) -> None:
        """Kill the script and wait until it has exited."""


class LostSlotsError(Exception):
    """An engine has less room than it said a moment ago."""


class Engine(Protocol):
    """Where the tasks of a job run."""

    def environments(self, width: int) -> dict[str, dict[str, str]]:
        """Return the environment variables of each task of an attempt with so many workers, on ports that are free.

        Raises:
            LostSlotsError: there is no room for so many any more.
        """

    def start(self, name: str, environment: Mapping[str, str]) -> Running:
        """Start one of these tasks."""


@dataclass
class Job:
    """The tasks of a job, which start and end together: once in each attempt."""

    engine: Engine
    events: queue.SimpleQueue
    widths: Widths
    progress: Progress | None  # where the number of workers may change
    max_restarts: int
    _: KW_ONLY
    has_servers: bool
    grace: float
    restarts: int = 0  # of the job and of its workers together
    interrupted: int | None = None
    _saved_at_loss: int = -1  # steps that were saved when room was lost
    _is_in_vain: bool = False  # whether fewer workers follow an attempt without a step: it may be the script's error

    def run(self) -> int:
        """Start attempt after attempt until one ends well, or none may follow; return 0, or the code of the last."""
        while True:
            width = self.widths.next(self.events)
            if isinstance(width, signal.Signals):
                return 128 + width
            try:
                environments = self.engine.environments(width)
            except LostSlotsError:
                continue
            code = self._attempt(width, environments)
            if self.interrupted or not (self._is_unfinished if self.is_resizing else code and self._goes_on()):
                return code

    def _attempt(self, width: int, environments: dict[str, dict[str, str]]) -> int:
        """Start all tasks and wait until they have ended; return 0, or the exit code of the first failure."""
        self.width, self.environments = width, environments
        if self.progress is not None:
            path = str(self.progress.begin(width))
            self.environments = {name: {**of, JOURNAL: path} for name, of in self.environments.items()}
        self.running: set[Running] = set()
        self.code: int | None = None  # of the first failure
        self.chief_has_exited = self._has_lost_room = False
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
        if self._has_lost_room and self._has_saved_since_the_last_loss():
            say("launch", "the room of a worker is lost, which is not a failure: on with what is left", sys.stderr)
            return True
        if self.may_restart():
            return True
        if not self.widths.lose(self.width):
            return False
        was_in_vain, self._is_in_vain = self._is_in_vain, not (self.progress and self.progress.has_made_steps)
        if was_in_vain and self._is_in_vain:
            say("launch", f"no step was made with {workers_text(self.width)} either: the job ends", sys.stderr)
            return False
        say("launch", f"no restart is left: on with {self.widths.wanted} of {self.width} workers", sys.stderr)
        return True

    def _has_saved_since_the_last_loss(self) -> bool:
        """Whether to go on without counting: a job that loses room again and again must make progress meanwhile."""
        if self.progress is None or self.progress.saved <= self._saved_at_loss:
            return False
        self._saved_at_loss = self.progress.saved
        return True

    def _start(self, name: str) -> None:
        self.running.add(self.engine.start(name, self.environments[name]))

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

    def _ended(self, task: Running, code: int) -> None:
        self.running.discard(task)
        self._has_lost_room |= task.is_lost
        if self.chief_has_exited or self.code is not None:
            return
        if self.is_resizing and not self.interrupted and not task.is_lost:
            self._is_unfinished |= code != 0
        elif code != 0:
            if not self.interrupted and self._goes_on_without(task, code):
                return
            self.code, self.is_resizing = code, False  # where room is lost, the others cannot save
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
        busy = self.is_resizing or self.interrupted or self.code is not None
        if busy or wanted == self.width or not self.widths.may_change:
            return
        now = f"there is now room for {workers_text(wanted)}: ending the {self.width} that run, after they have saved"
        say("launch", now, sys.stderr)
        self.is_resizing = True
        if self.progress is not None:
            self.progress.noticed()
        self._end_all(signal.SIGTERM, self.grace)

    def _goes_on_without(self, task: Running, code: int) -> bool:
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


def _is_worker(task: Running) -> bool:
    return task.name.startswith("worker")


def _described(code: int) -> str:
    if code > 128 and code - 128 in set(signal.Signals):
        return f"exit code {code} ({signal.Signals(code - 128).name})"
    return f"exit code {code}"
