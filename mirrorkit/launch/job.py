"""A job: its tasks start together and end together, attempt after attempt, with the workers there is room for."""

from __future__ import annotations

import functools
import math
import queue
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Protocol

from mirrorkit.errors import JobError
from mirrorkit.journal import JOURNAL
from mirrorkit.launch.called import RESULT
from mirrorkit.launch.output import say, tell
from mirrorkit.launch.process import Tell
from mirrorkit.launch.progress import Progress

ROOM = "room"  # the event that there is room for another number of workers
_TIME_IS_UP = "time is up"
_LOOK = getattr(signal, "SIGHUP", None)

# After a failure the others cannot go on; this is the time they have to print their errors.
_SECONDS_AFTER_FAILURE = 5.0
_LONGEST_WAIT = 1.0  # seconds; a signal that comes just before a wait begins has its handler run after that wait


class Running(Protocol):
    """A task that was started."""

    def send(self, number: int) -> None:
        """Send a signal to the script and all that it started."""

    def end(self) -> None:
        """Kill the script and wait until it has exited."""


class LostRoomError(Exception):
    """There is less room than a moment ago."""


class Placement(Protocol):
    """Where the tasks of a job run. It puts `ROOM` into the events of the job when the room for workers changes.

    Attributes:
        problem: why there will be no more room; "" where there may be.
    """

    problem: str

    @property
    def room(self) -> int:
        """For how many workers there is room."""

    def refresh(self) -> bool:
        """Look how much room there is, after a wait while it changes; return whether it has changed."""

    def look(self) -> bool:
        """Look soon, as SIGHUP asks for; return whether this signal means that here."""

    def environments(self, width: int) -> dict[str, dict[str, str]]:
        """Return the environment variables of each task of an attempt with so many workers, on ports that are free.

        Raises:
            LostRoomError: there is no room for so many any more.
        """

    def start(self, name: str, environment: Mapping[str, str], tell: Tell) -> Running:
        """Start one of these tasks.

        `tell` is that of `Process`; it is given ("lost", exit code) where the room of the task is gone with it.
        """

    def close(self) -> None:
        """Give the room back."""


@dataclass
class Job:
    """Starts, watches and ends the tasks of a job: once in each attempt.

    Args:
        placement: where they run.
        events: (task, what, value) as `Process` tells them, `ROOM`, and signals to this process.
        least: workers.
        most: workers.
        max_restarts: of the job and of its workers together.
        grace: seconds between a signal and SIGKILL.
        wait: seconds to wait for room for the least number of workers.

    Attributes:
        interrupted: the signal that ends the job.
        result: the line that the function on worker 0 has written, after `RESULT`.
    """

    placement: Placement
    events: queue.SimpleQueue
    least: int
    most: int
    _: KW_ONLY
    max_restarts: int
    grace: float
    wait: float
    progress: Progress = field(default_factory=Progress)
    restarts: int = 0
    interrupted: int | None = None
    result: str | None = None
    _saved_at_loss: int = -1  # steps that were saved when room was lost
    _is_in_vain: bool = False  # whether fewer workers follow an attempt without a step: it may be the script's error

    def run(self) -> int:
        """Start attempt after attempt until one ends well, or none may follow; return 0, or the code of the last."""
        self._limit = self.most  # less after failures that no restart follows
        while width := self._next_width():
            try:
                environments = self.placement.environments(width)
            except LostRoomError:
                continue
            code = self._attempt(width, environments)
            if self.interrupted or not (self._is_unfinished if self.is_resizing else code and self._goes_on()):
                return code
        return 128 + (self.interrupted or 0)

    @property
    def _may_change(self) -> bool:
        return self.least < self.most

    @property
    def _wanted(self) -> int:
        return min(self._limit, self.placement.room)

    def _next_width(self) -> int:
        """Return the number of workers, after a wait where there is no room for the least; 0 where a signal came.

        Raises:
            JobError: there was no room for too long, or there will be none.
        """
        end, has_told = time.monotonic() + self.wait, False
        while True:
            if self.placement.refresh():
                self._limit = self.most  # what was lost may be back
            width = self._wanted
            is_enough = width >= self.least
            room = f"There is room for {workers_text(width)}, and the job needs {self.least}"
            if self.placement.problem and not is_enough:
                raise JobError(f"{room}. {self.placement.problem}")
            if not (is_enough or has_told):
                tell(f"{room}: waiting up to {self.wait:g} s")
                has_told = True
            event = self._next_event(0.0 if is_enough else end)  # where there is enough, one that has come already
            if event is _TIME_IS_UP and is_enough:
                return width
            if event is _TIME_IS_UP:
                raise JobError(f"{room}; it has waited for {self.wait:g} s. Make room, or ask for fewer.")
            if not self._is_of_room(event):
                self.interrupted = event
                return 0

    def _is_of_room(self, event: Any) -> bool:
        """Take an event that is about room for workers; return whether it is."""
        if event == ROOM:
            self._limit = self.most
        return event == ROOM or (event == _LOOK and self.placement.look())

    def _next_event(self, deadline: float) -> Any:
        while True:
            try:
                return self.events.get(timeout=max(0.0, min(_LONGEST_WAIT, deadline - time.monotonic())))
            except queue.Empty:
                if time.monotonic() >= deadline:
                    return _TIME_IS_UP

    def _attempt(self, width: int, environments: dict[str, dict[str, str]]) -> int:
        """Start all tasks and wait until they have ended; return 0, or the exit code of the first failure."""
        self.width, self.environments = width, environments
        self._has_servers = "ps 0" in environments
        self.progress.begin(workers_text(width))
        self.running: dict[str, Running] = {}
        self.code: int | None = None  # of the first failure
        self.chief_has_exited = self._has_lost_room = False
        self.is_resizing, self._is_unfinished = False, False  # whether to start again with other workers
        self.deadline = math.inf  # when to kill what still runs
        try:
            for name in environments:
                self._start(name)
            while self.running:
                self._handle(self._next_event(self.deadline))
        finally:
            for task in self.running.values():
                task.end()
        self.progress.stopped()
        return self.code or 0

    def _start(self, name: str) -> None:
        journal = {JOURNAL: ""} if self._may_change else {}
        environment = {**self.environments[name], **journal}
        self.running[name] = self.placement.start(name, environment, functools.partial(self._tell, name))

    def _tell(self, name: str, what: str, value: Any) -> None:
        """Print a line of a task, or make an event of what else there is; called in threads."""
        if what in ("out", "err"):
            say(name, value, sys.stdout if what == "out" else sys.stderr)
        else:
            self.events.put((name, what, value))

    def _handle(self, event: Any) -> None:
        if isinstance(event, tuple):
            name, what, value = event
            if what != "note":
                self._ended(name, value, is_lost=what == "lost")
            elif value.startswith(RESULT):
                self.result = value.removeprefix(RESULT)
            else:
                self.progress.take(value)
        elif self._is_of_room(event):
            self._resize()
        elif event is _TIME_IS_UP or self.interrupted:
            self._send(signal.SIGKILL)
        else:
            self.interrupted = event
            tell(f"{signal.Signals(event).name}: passed on to every task")
            self._send(event, self.grace)

    def _ended(self, name: str, code: int, *, is_lost: bool) -> None:
        del self.running[name]
        self._has_lost_room |= is_lost
        if self.chief_has_exited or self.code is not None:
            return
        if self.is_resizing and not self.interrupted and not is_lost:
            self._is_unfinished |= code != 0
        elif code != 0:
            if not self.interrupted and self._goes_on_without(name, code):
                return
            self.code, self.is_resizing = code, False  # where room is lost, the others cannot save
            if not self.interrupted:
                others = "; ending the others" if self.running else ""
                self._stop(f"{name} ended with {_described(code)}{others}", _SECONDS_AFTER_FAILURE)
        elif self._has_servers and name == "chief":  # the others only serve it
            self.chief_has_exited = True
            self._send(signal.SIGTERM, _SECONDS_AFTER_FAILURE)

    def _resize(self) -> None:
        """End all tasks, to start them again, where there is room for another number of workers."""
        wanted = self._wanted
        busy = self.is_resizing or self.interrupted or self.code is not None
        if self._may_change and not busy and wanted != self.width:
            self.is_resizing = True
            now = f"there is now room for {workers_text(wanted)}"
            self._stop(f"{now}: ending the {self.width} that run, after they have saved", self.grace)

    def _stop(self, why: str, grace: float) -> None:
        self.progress.noticed()
        tell(why)
        self._send(signal.SIGTERM, grace)

    def _send(self, number: int, grace: float = math.inf) -> None:
        """Send a signal to all tasks, and SIGKILL so many seconds later."""
        for task in self.running.values():
            task.send(number)
        self.deadline = time.monotonic() + grace

    def _goes_on_without(self, name: str, code: int) -> bool:
        """Return whether the job survives this failure: that of a worker, whose variables are on parameter servers."""
        workers = [task for task in self.running if task.startswith("worker")]
        if not (self._has_servers and name.startswith("worker") and (workers or self.restarts < self.max_restarts)):
            return False
        tell(f"{name} ended with {_described(code)}; the others go on")
        if self._may_restart(f": {name}"):
            self._start(name)
        return True

    def _goes_on(self) -> bool:
        """Return whether another attempt follows a failure, if need be with fewer workers."""
        if self._has_lost_room and self._may_change and self.progress.saved > self._saved_at_loss:
            # It is not counted; but a job that loses room again and again must save meanwhile.
            self._saved_at_loss = self.progress.saved
            tell("the room of a worker is lost, which is not a failure: on with what is left")
            return True
        if self._may_restart():
            return True
        if self.width <= self.least:
            return False
        self._limit = self.width - 1
        was_in_vain, self._is_in_vain = self._is_in_vain, not self.progress.has_made_steps
        if was_in_vain and self._is_in_vain:
            tell(f"no step was made with {workers_text(self.width)} either: the job ends")
            return False
        tell(f"no restart is left: on with {self._wanted} of {self.width} workers")
        return True

    def _may_restart(self, of: str = "") -> bool:
        """Count a restart and print that; return False where none is left."""
        if self.restarts >= self.max_restarts:
            return False
        self.restarts += 1
        tell(f"restart {self.restarts} of {self.max_restarts}{of}")
        return True


def workers_text(count: int) -> str:
    """Return such as "1 worker" or "2 workers"."""
    return f"{count} worker{'' if count == 1 else 's'}"


def _described(code: int) -> str:
    if code > 128 and code - 128 in set(signal.Signals):
        return f"exit code {code} ({signal.Signals(code - 128).name})"
    return f"exit code {code}"
