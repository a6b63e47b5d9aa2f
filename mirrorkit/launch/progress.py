"""When the attempts of a job went on, from which step, and how long each phase before took.

The times are those of this process, at which it reads a line: clocks of other machines differ, and may be set.
"""

from __future__ import annotations

import itertools
import time

from mirrorkit.errors import JobError
from mirrorkit.journal import BEGAN, RESTORED, SAVED, STEPS, parsed
from mirrorkit.launch.output import tell

_PHASES = ("noticed", "stopped", "started", "restored", "first call")
_ENDS = {3: BEGAN, 4: RESTORED, 5: STEPS}  # which line of the journal is awaited, after so many times


class Progress:
    """Takes the lines of the journal, and prints one for each attempt but the first, when it has made its first steps.

    Attributes:
        saved: steps in the newest checkpoint.
        has_made_steps: whether the last attempt has.
    """

    def __init__(self) -> None:
        self.saved = self._steps = 0
        self._time = 0.0  # of the last step
        self._times: list[float] = []  # at which the phases begin, from the end of one attempt into the next
        self.begin("")

    def begin(self, workers: str) -> None:
        """Begin an attempt."""
        self._workers, self.has_made_steps = workers, False

    def noticed(self) -> None:
        """Take note that the attempt is to end: now this was noticed."""
        now = time.monotonic()
        self._times, self._reached = [self._time or now, now], self._steps

    def stopped(self) -> None:
        """Take note that all of its tasks have ended."""
        self._times.append(time.monotonic())

    def take(self, text: str) -> None:
        """Take a line of the journal.

        Raises:
            JobError: the training starts from the beginning, though it had saved a checkpoint.
        """
        line, now = parsed(text), time.monotonic()
        if line is None:
            return
        if line.what == SAVED:
            self.saved = max(self.saved, line.steps)
        elif line.what != BEGAN:
            self._time, self._steps = now, line.steps
        self.has_made_steps |= line.what == STEPS
        if line.what != _ENDS.get(len(self._times)):
            return
        self._times.append(now)
        if line.what == RESTORED:
            self._restored = line.steps
            if self.saved and not line.steps:
                raise JobError(
                    f"Step {self.saved} was saved, but the script found no checkpoint when it started again, and would "
                    "train from the beginning: its folder is local to a machine that is gone, or is not the same as "
                    "before. Give mk.train.Checkpoints a folder that all machines share and that stays the same."
                )
        elif line.what == STEPS:
            self._tell()

    def _tell(self) -> None:
        phases = zip(_PHASES, itertools.pairwise(self._times), strict=True)
        each = ", ".join(f"{name} {end - start:.1f}" for name, (start, end) in phases)
        took = f"{self._times[-1] - self._times[0]:.1f} s after the last step ({each})"
        repeated = max(0, self._reached - self._restored)
        tell(f"{self._workers} from step {self._restored} on, {took}; {repeated} steps repeated")
