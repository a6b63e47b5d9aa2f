"""The check of the first batch, repeated later: a counter or a callback may have switched on what it did not show."""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import perf_counter, process_time
from typing import Any

from mirrorkit._types import Batch
from mirrorkit.errors import StepError
from mirrorkit.strategy import is_chief
from mirrorkit.train.first_batch.check import Switches, first_batch_check

_log = logging.getLogger("mirrorkit")

_SECONDS, _SHARE = 5.0, 0.01  # all later checks together: seconds, or a share of the training time if that is more


class LaterChecks:
    """Checks batches again: after 11, 101, 1,001, ... steps of a loop, and after changes by callbacks.

    Such a change is one of a small variable that the step reads and no update writes; of its changes, the first, the
    second, the fourth and so on. A first batch that could tell nothing is followed by others likewise.
    """

    def __init__(self, step: Any) -> None:
        self._step = step
        self._check = first_batch_check(step, again=True)
        self._switches: Switches | None = None
        self._right = 0  # after so many steps the last check found nothing
        self._is_told = False  # that a check waits
        self._trained = self._spent = self._last = 0.0  # seconds: of training, of later checks, of the last check

    def first(self, steps: int) -> Callable[[Batch], bool] | None:
        """Return the check of the first batch of a fit, after so many steps; None without need."""
        check = first_batch_check(self._step)
        return check and (lambda batch: self._run(check, batch, steps))

    def note(self, seconds: float) -> None:
        """Take in how long a call took; after the first one, remember what callbacks may change."""
        if self._check and not self._trained:
            self._switches = Switches(self._step)
        self._trained += seconds

    def is_due(self, steps: int) -> bool:
        """Return whether to check after so many steps; on several workers the chief decides."""
        if self._check is None or not is_chief(self._step.strategy):
            return False
        is_checked = "train" in self._step.checked
        # An odd number, where the first check was of an even one: some trainings do otherwise in every second step.
        due = 10 ** len(str(self._right)) + 1 if is_checked else 2 * self._right
        if is_checked and self._spent + self._last > max(_SECONDS, _SHARE * self._trained):
            if steps >= due and not self._is_told:
                self._is_told = True
                _log.info("The check at step %d waits: checks take at most 5 s, or 1 %% of the training time.", due)
            return False
        is_switched = self._switches is not None and self._switches.is_due()
        return steps >= due or is_switched

    def check(self, steps: int, batch: Batch) -> None:
        """Refuse a step that on parts of a batch no longer comes to what it does on all rows. Collective."""
        assert self._check is not None
        right = self._right
        try:
            self._run(self._check, batch, steps)
        except StepError as error:
            self._step.checked.pop("train", None)  # so that the next fit begins with a check
            raise StepError(
                f"At step {steps} a batch is not what its parts are; the check at step {right} found no difference. "
                f"Other rows, a counter, a callback or other weights have changed what the step computes. {error} A "
                f"checkpoint from before step {right} is not affected by what began later."
            ) from error
        self._spent += self._last

    def _run(self, check: Callable[[Batch], bool], batch: Batch, steps: int) -> bool:
        begin = perf_counter(), process_time()
        is_telling = check(batch)
        # Not what other programs take, and several cores at a time are no more than one.
        self._last = min(perf_counter() - begin[0], process_time() - begin[1])
        self._right = steps
        return is_telling
