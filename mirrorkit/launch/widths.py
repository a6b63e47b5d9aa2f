"""How many workers each attempt of a job has."""

from __future__ import annotations

import queue
import signal
import sys
import time
from typing import Any

from mirrorkit.errors import JobError
from mirrorkit.launch.slots import Room, Slots
from mirrorkit.launch.task import say
from mirrorkit.whole import is_whole

LONGEST_WAIT = 1.0  # seconds; a signal that comes just before a wait begins has its handler run after that wait
_LOOK = getattr(signal, "SIGHUP", None)


def least_and_most(workers: int | tuple[int, int]) -> tuple[int, int]:
    """Return the bounds that `workers` names; refuse what names none."""
    least, most = workers if isinstance(workers, tuple) and len(workers) == 2 else (workers, workers)
    if not (is_whole(least) and is_whole(most) and least <= most):
        raise JobError(
            f"workers must be a whole number from 1 on, or a minimum and a maximum, such as (1, 4); found {workers!r}."
        )
    return int(least), int(most)


class Widths:
    """The number of workers of the next attempt: as many as there is room for, within bounds.

    Args:
        least: workers.
        most: workers.
        slots: how many there is room for; None for any number.
        wait: seconds to wait for room for the least.
    """

    def __init__(self, least: int, most: int, slots: Room | None, wait: float) -> None:
        self._least, self._most = least, most
        self._slots, self._wait = slots, wait
        self._limit = most  # less after failures that no restart follows

    @property
    def may_change(self) -> bool:
        """Whether a job may go on with another number."""
        return self._least < self._most

    @property
    def wanted(self) -> int:
        """How many there would be now; perhaps fewer than the least."""
        return self._limit if self._slots is None else min(self._limit, self._slots.count)

    def lose(self, width: int) -> bool:
        """Take note that one of so many workers is lost; return whether enough are left."""
        if width <= self._least:
            return False
        self._limit = width - 1
        return True

    def takes(self, event: Any) -> bool:
        """Take an event that is about slots; return whether it is."""
        if self._slots is None:
            return False
        if event is self._slots:
            self._limit = self._most  # what was lost may be back
            return True
        if event == _LOOK and isinstance(self._slots, Slots):
            self._slots.look()
            return True
        return False

    def next(self, events: queue.SimpleQueue) -> int | signal.Signals:
        """Return the number, after a wait where there is no room for the least; or the signal that ends the job.

        Raises:
            JobError: there was no room for too long, or there will be none.
        """
        end, told = time.monotonic() + self._wait, False
        self._refresh()
        while True:
            is_enough = self.wanted >= self._least
            if not is_enough:
                room = f"There is room for {workers_text(self.wanted)}, and the job needs {self._least}"
                if self._slots is not None and self._slots.problem:
                    raise JobError(f"{room}. {self._slots.problem}")
                if time.monotonic() >= end:
                    raise JobError(f"{room}; it has waited for {self._wait:g} s. Make room, or ask for fewer.")
                if not told:
                    say("launch", f"{room}: waiting up to {self._wait:g} s", sys.stderr)
                told = True
            try:
                event = events.get(timeout=0 if is_enough else min(LONGEST_WAIT, max(0.0, end - time.monotonic())))
            except queue.Empty:
                if is_enough:
                    return self.wanted
                continue
            if not self.takes(event):
                return signal.Signals(event)
            self._refresh()

    def _refresh(self) -> None:
        if self._slots is not None and self._slots.refresh():
            self._limit = self._most


def workers_text(count: int) -> str:
    """Return such as "1 worker" or "2 workers"."""
    return f"{count} worker{'' if count == 1 else 's'}"
