"""A job whose tasks all run on this machine, where slots may say how many workers there is room for."""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from mirrorkit.errors import JobError
from mirrorkit.launch import slots
from mirrorkit.launch.output import tell
from mirrorkit.launch.process import ROOM, Process, Tell

_SECONDS = 5.0  # between two looks at the slots


@dataclass(eq=False)
class ThisMachine:
    """Starts tasks as processes. `RayNodes` has the same methods, and these attributes.

    Attributes:
        problem: why there will be no more room; "" where there may be.

    Args:
        command: of each task.
        environments: returns the environment variables of each task of an attempt with so many workers, on ports that
            are free; none where there is less room than a moment ago.
        events: those of the job; `ROOM` is put into them when the room for workers changes.
        room: for how many workers there is room; at first where there are no slots.
        source: of the slots (`slots.count`), which a thread looks up; None where the room does not change.

    Raises:
        JobError: there is no number of slots at the start.
    """

    command: Sequence[str]
    environments: Callable[[int], dict[str, dict[str, str]]]
    events: queue.SimpleQueue
    room: int
    source: str | None
    problem = ""

    def __post_init__(self) -> None:
        """Look up the slots, and go on in a thread."""
        self._wanted, self._looking = threading.Event(), threading.Lock()
        self._is_closed = self._has_failed = False
        if self.source is not None:
            self.room = slots.count(self.source)
            threading.Thread(target=self._watch, daemon=True).start()

    def refresh(self) -> bool:
        """Look how much room there is, after a wait while it changes; return whether it has changed.

        Where there is no number, the room stays as it was.
        """
        if self.source is None:
            return False
        with self._looking:
            before = self.room
            try:
                self.room = slots.count(self.source)
                self._has_failed = False
            except JobError as error:
                if not self._has_failed:
                    tell(f"{error} It is taken for {before}, as before.")
                self._has_failed = True
            return self.room != before

    def look(self) -> bool:
        """Look soon, as SIGHUP asks for; return whether this signal means that here."""
        self._wanted.set()
        return self.source is not None

    def start(self, name: str, environment: Mapping[str, str], tell: Tell) -> Process:
        """Start one of these tasks.

        `tell` is that of `Process`; it is given ("lost", exit code) where the room of the task is gone with it.
        """
        return Process([sys.executable, *self.command], environment, tell)

    def close(self) -> None:
        """Give the room back."""
        self._is_closed = True
        self._wanted.set()

    def _watch(self) -> None:
        while True:
            self._wanted.wait(_SECONDS)
            self._wanted.clear()
            if self._is_closed:
                return
            if self.refresh():
                self.events.put(ROOM)
