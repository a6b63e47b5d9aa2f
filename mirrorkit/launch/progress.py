"""When the attempts of a job went on, from which step, and how long each phase before took."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path

from mirrorkit import journal
from mirrorkit.errors import JobError
from mirrorkit.launch.task import say
from mirrorkit.launch.widths import workers_text


@dataclass
class _End:
    """Of an attempt."""

    last: journal.Line | None  # the last one with steps
    noticed: float
    stopped: float = 0.0


class Progress:
    """Reads the journals, and prints a line for each attempt but the first, when it has made its first steps."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._number = 0
        self._end: _End | None = None  # of the attempt before
        self._told = True
        self.saved = 0  # steps in a checkpoint of an attempt before
        self.has_made_steps = False  # the attempt that ended last

    def begin(self, width: int) -> Path:
        """Begin an attempt; return the path of its journal."""
        self._width, self._told = width, self._end is None
        self._number += 1
        return self._path

    @property
    def _path(self) -> Path:
        return self._folder / f"journal-{self._number}"

    @property
    def is_pending(self) -> bool:
        """Whether there is a line to print when the training goes on."""
        return not self._told

    def noticed(self) -> None:
        """Take note that the attempt is to end: now this was noticed."""
        self.look()
        found = journal.read(self._path)
        steps = [line for line in found if line.what in (journal.RESTORED, journal.STEPS)]
        before = self._end.last if self._end is not None else None
        self._end = _End(steps[-1] if steps else before, time.time())

    def stopped(self) -> None:
        """Take note that all of its tasks have ended, which may have saved when they were asked to."""
        found = journal.read(self._path)
        self.saved = max([self.saved, *(line.steps for line in found if line.what == journal.SAVED)])
        self.has_made_steps = any(line.what == journal.STEPS for line in found)
        if self._end is not None:
            self._end.stopped = time.time()

    def look(self) -> None:
        """Print the line where the first steps were made.

        Raises:
            JobError: the training starts from the beginning, though it had saved a checkpoint.
        """
        if self._told or self._end is None:
            return
        found = journal.read(self._path)
        first = {line.what: line for line in reversed(found)}
        if journal.RESTORED in first and first[journal.RESTORED].steps == 0 and self.saved:
            raise JobError(
                f"Step {self.saved} was saved, but the script found no checkpoint when it started again, and would "
                "train from the beginning: its folder is local to a machine that is gone, or is not the same as "
                "before. Give mk.train.Checkpoints a folder that all machines share and that stays the same."
            )
        if not first.keys() >= {journal.BEGAN, journal.RESTORED, journal.STEPS}:
            return
        self._told = True
        began, restored, steps = (first[what] for what in (journal.BEGAN, journal.RESTORED, journal.STEPS))
        end = self._end
        phases = {
            "noticed": end.noticed - (end.last.time if end.last else end.noticed),
            "stopped": end.stopped - end.noticed,
            "started": began.time - end.stopped,
            "restored": restored.time - began.time,
            "first call": steps.time - restored.time,
        }
        repeated = max(0, end.last.steps - restored.steps) if end.last else 0
        of = ", ".join(f"{name} {seconds:.1f}" for name, seconds in phases.items())
        went_on = f"{workers_text(self._width)} from step {restored.steps} on"
        took = f"{sum(phases.values()):.1f} s after the last step ({of})"
        say("launch", f"{went_on}, {took}; {repeated} steps repeated", sys.stderr)
