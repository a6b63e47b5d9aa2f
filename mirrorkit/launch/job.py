"""A job: its tasks start together and end together, attempt after attempt, with the workers there is room for."""

from __future__ import annotations

import functools
import math
import queue
import signal
import sys
import time
from dataclasses import KW_ONLY, dataclass
from typing import Any

from mirrorkit import stop_signals
from mirrorkit.arguments import is_whole, seconds, whole_number
from mirrorkit.errors import ArgumentError, JobError
from mirrorkit.journal import JOURNAL
from mirrorkit.launch.called import RESULT
from mirrorkit.launch.output import say, tell, workers_text
from mirrorkit.launch.process import ROOM, Process
from mirrorkit.launch.progress import Progress
from mirrorkit.launch.ray_nodes import RayNodes, RayProcess
from mirrorkit.launch.this_machine import ThisMachine

HANGUP = getattr(signal, "SIGHUP", None)  # not on Windows

# After a failure the others cannot go on; this is the time they have to print their errors.
_SECONDS_AFTER_FAILURE = 5.0
_MOST_WORKERS = 10_000
_LONGEST_WAIT = 1.0  # seconds; a signal that comes just before a wait begins has its handler run after that wait


@dataclass
class Job:
    """Starts, watches and ends the tasks of a job: once in each attempt.

    Args:
        workers: their number, or the least and the most.
        max_restarts: of the job and of its workers together.
        wait: seconds to wait for room for the least number of workers.
        grace: seconds between a signal and SIGKILL.

    Attributes:
        events: (task, what, value) as `Process` tells them, `ROOM`, and signals to this process.
        interrupted: the signal that ends the job, or 0.
        result: the line that the function on worker 0 has written, after `RESULT`.

    Raises:
        JobError: one of the numbers means nothing.
        ArgumentError: this is not the main thread.
    """

    workers: int | tuple[int, int]
    _: KW_ONLY
    max_restarts: int
    wait: float
    grace: float

    def __post_init__(self) -> None:
        """Refuse what means nothing, and begin without an attempt."""
        if not stop_signals.can_catch():
            raise ArgumentError("launch must be called from the main thread: only that one can pass signals on.")
        pair = self.workers if isinstance(self.workers, tuple) else (self.workers, self.workers)
        if not (len(pair) == 2 and all(map(is_whole, pair)) and pair[0] <= pair[1] <= _MOST_WORKERS):
            raise JobError(
                f"workers must be a whole number from 1 to {_MOST_WORKERS}, or a minimum and a maximum such as (1, 4); "
                f"found {self.workers!r}."
            )
        self.least, self.most = map(int, pair)
        whole_number("max_restarts", self.max_restarts, JobError, least=0)
        seconds("wait", self.wait, JobError)
        seconds("grace", self.grace, JobError)
        self.may_change = self.least < self.most
        self.events: queue.SimpleQueue = queue.SimpleQueue()
        self.interrupted = 0
        self.result: str | None = None
        self._progress = Progress()
        self._restarts = 0
        self._limit = self.most  # less after failures that no restart follows
        self._saved_at_loss = -1  # steps that were saved when room was lost
        self._is_in_vain = False  # whether an attempt has made no step: it may be the script's error

    def run(self, placement: ThisMachine | RayNodes) -> int:
        """Start attempt after attempt until one ends well, or none may follow; return 0, or the code of the last."""
        self._placement = placement
        while width := self._next_width():
            environments = placement.environments(width)
            if not environments:
                continue
            code = self._attempt(width, environments)
            if self.interrupted or not code or not self._goes_on():
                return code
        return 128 + self.interrupted

    @property
    def _wanted(self) -> int:
        return min(self._limit, self._placement.room)

    def _next_width(self) -> int:
        """Return the number of workers, after a wait where there is no room for the least; 0 where a signal came.

        Raises:
            JobError: there was no room for too long, or there will be none.
        """
        end, has_told = time.monotonic() + self.wait, False
        while True:
            if self._placement.refresh():
                self._limit = self.most  # what was lost may be back
            width, problem = self._wanted, self._placement.problem
            is_enough = width >= self.least
            room = f"There is room for {workers_text(width)}, and the job needs {self.least}"
            if not (is_enough or problem or has_told):
                tell(f"{room}: waiting up to {self.wait:g} s")
                has_told = True
            # Where there is nothing to wait for, this is an event that has come already.
            event = self._next_event(0.0 if is_enough or problem else end)
            if event is None and is_enough:
                return width
            if event is None:
                waited = f"it has waited for {self.wait:g} s. Make room, or ask for fewer."
                raise JobError(f"{room}: {problem or waited}")
            if not self._is_of_room(event):
                self.interrupted = event
                return 0

    def _is_of_room(self, event: Any) -> bool:
        """Take an event that is about room for workers; return whether it is."""
        if event == ROOM:
            self._limit = self.most
        return event == ROOM or (event == HANGUP and self._placement.look())

    def _next_event(self, deadline: float) -> Any:
        """Return an event, after a wait for it; None when the time is up."""
        while True:
            try:
                return self.events.get(timeout=max(0.0, min(_LONGEST_WAIT, deadline - time.monotonic())))
            except queue.Empty:
                if time.monotonic() >= deadline:
                    return None

    def _attempt(self, width: int, environments: dict[str, dict[str, str]]) -> int:
        """Start all tasks and wait until they have ended; return 0, or the exit code of the first failure."""
        self._width, self._environments = width, environments
        self._has_servers = "ps 0" in environments
        self._progress.begin(workers_text(width))
        self._running: dict[str, Process | RayProcess] = {}
        self._code: int | None = None  # of the attempt: that of the first failure, or the chief's
        self._is_resizing = False  # whether it ends, to start again with other workers
        self._has_lost_room = False
        self._deadline = math.inf  # when to kill what still runs
        try:
            for name in environments:
                self._start(name)
            while self._running:
                self._handle(self._next_event(self._deadline))
        finally:
            for task in self._running.values():
                task.end()
        self._progress.stopped()
        return self._code or 0

    def _start(self, name: str) -> None:
        journal = {JOURNAL: ""} if self.may_change else {}
        environment = {**self._environments[name], **journal}
        self._running[name] = self._placement.start(name, environment, functools.partial(self._tell, name))

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
                self._progress.take(value)
        elif self._is_of_room(event):
            self._resize()
        elif event is None or self.interrupted:
            self._send(signal.SIGKILL)
        else:
            self.interrupted = event
            self._send(event, self.grace)  # first: printing waits for a reader, which may never come
            tell(f"{signal.Signals(event).name}: passed on to every task")

    def _ended(self, name: str, code: int, *, is_lost: bool) -> None:
        del self._running[name]
        self._has_lost_room |= is_lost
        if is_lost and self._is_resizing:  # the others cannot save: a failure after all
            self._is_resizing, self._code = False, None
        if self._code is not None:
            return
        if code and (self._is_resizing or self.interrupted):
            self._code = code
        elif code and not self._goes_on_without(name, code):
            self._code = code
            others = "; ending the others" if self._running else ""
            self._stop(f"{name} ended with {_described(code)}{others}", _SECONDS_AFTER_FAILURE)
        elif not code and self._has_servers and name == "chief":  # the others only serve it
            self._code = 0
            self._send(signal.SIGTERM, _SECONDS_AFTER_FAILURE)

    def _resize(self) -> None:
        """End all tasks, to start them again, where there is room for another number of workers."""
        wanted = self._wanted
        is_ending = self._is_resizing or self.interrupted or self._code is not None
        if self.may_change and not is_ending and wanted != self._width:
            self._is_resizing = True
            now = f"there is now room for {workers_text(wanted)}"
            self._stop(f"{now}: ending the {self._width} that run, after they have saved", self.grace)

    def _stop(self, why: str, grace: float) -> None:
        self._progress.noticed()
        self._send(signal.SIGTERM, grace)
        tell(why)

    def _send(self, number: int, grace: float = math.inf) -> None:
        """Send a signal to all tasks, and SIGKILL so many seconds later."""
        for task in self._running.values():
            task.send(number)
        self._deadline = time.monotonic() + grace

    def _goes_on_without(self, name: str, code: int) -> bool:
        """Return whether the job survives this failure: that of a worker, whose variables are on parameter servers."""
        workers = [task for task in self._running if task.startswith("worker")]
        if not (self._has_servers and name.startswith("worker") and (workers or self._restarts < self.max_restarts)):
            return False
        tell(f"{name} ended with {_described(code)}; the others go on")
        if self._may_restart(f": {name}"):
            self._start(name)
        return True

    def _goes_on(self) -> bool:
        """Return whether another attempt follows this one, if need be with fewer workers."""
        if self._is_resizing:
            return True
        if self._has_lost_room and self.may_change and self._progress.saved > self._saved_at_loss:
            # It is not counted; but a job that loses room again and again must save meanwhile.
            self._saved_at_loss = self._progress.saved
            tell("the room of a worker is lost, which is not a failure: on with what is left")
            return True
        if self._may_restart():
            return True
        if self._width <= self.least:
            return False
        self._limit = self._width - 1
        was_in_vain, self._is_in_vain = self._is_in_vain, not self._progress.has_made_steps
        if was_in_vain and self._is_in_vain:
            tell(f"no step was made with {workers_text(self._width)} either: the job ends")
            return False
        tell(f"no restart is left: on with {self._wanted} of {self._width} workers")
        return True

    def _may_restart(self, of: str = "") -> bool:
        """Count a restart and print that; return False where none is left."""
        if self._restarts >= self.max_restarts:
            return False
        self._restarts += 1
        tell(f"restart {self._restarts} of {self.max_restarts}{of}")
        return True


def _described(code: int) -> str:
    if code > 128 and code - 128 in set(signal.Signals):
        return f"exit code {code} ({signal.Signals(code - 128).name})"
    return f"exit code {code}"
