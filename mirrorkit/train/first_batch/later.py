"""The check of the first batch, repeated later: a counter or a callback may have switched on what it did not show."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np

from mirrorkit._types import Batch
from mirrorkit.errors import StepError
from mirrorkit.strategy import is_chief
from mirrorkit.train.first_batch.check import first_batch_check
from mirrorkit.variables import copies

_SECONDS, _SHARE = 5.0, 0.01  # all later checks together: seconds, or a share of the training time if that is more
_SMALL = 16  # numbers in a variable, at most, that may be a switch


class LaterChecks:
    """Checks batches again: after 10, 100, 1,000, ... steps of a loop, and after changes by callbacks.

    Such a change is one of a small variable that the step reads and no update writes; of its changes, the first, the
    second, the fourth and so on. A first batch that could tell nothing is followed by others likewise.
    """

    def __init__(self, step: Any) -> None:
        self._step = step
        self._check = first_batch_check(step, again=True)
        self._switches: list[_Switch] = []
        self._right = 0  # after so many steps the last check found nothing
        self._trained = self._spent = self._last = 0.0  # seconds: of training, of later checks, of the last check

    def first(self, steps: int) -> Callable[[Batch], None] | None:
        """Return the check of a first batch, after so many steps; None without need."""
        check = first_batch_check(self._step)
        return check and (lambda batch: self._run(check, batch, steps))

    def note(self, seconds: float) -> None:
        """Take in how long a call took; after the first one, remember what callbacks may change."""
        if self._check and not self._trained:
            self._switches = [_Switch(one) for one in self._step.only_read if np.prod(one.shape) <= _SMALL]
        self._trained += seconds

    def is_due(self, steps: int) -> bool:
        """Return whether to check after so many steps; on several workers the chief decides."""
        has_time = self._spent + self._last <= max(_SECONDS, _SHARE * self._trained)
        if self._check is None or not has_time or not is_chief(self._step.strategy):
            return False
        due = 10 ** len(str(self._right)) if "train" in self._step.checked else 2 * self._right
        is_switched = [switch.is_due() for switch in self._switches]
        return steps >= due or any(is_switched)

    def check(self, steps: int, batch: Batch) -> None:
        """Refuse a step that on parts of a batch no longer comes to what it does on all rows. Collective."""
        assert self._check is not None
        right = self._right
        try:
            self._run(self._check, batch, steps)
        except StepError as error:
            self._step.checked.discard("train")  # so that the next fit begins with a check
            raise StepError(
                f"At step {steps} a batch is not what its parts are; the check at step {right} found no difference. "
                f"Other rows, a counter, a callback or other weights have changed what the step computes. {error} A "
                f"checkpoint from before step {right} is not affected by what began later."
            ) from error
        self._spent += self._last

    def _run(self, check: Callable[[Batch], None], batch: Batch, steps: int) -> None:
        begin = perf_counter()
        check(batch)
        self._last, self._right = perf_counter() - begin, steps


class _Switch:
    """A variable that callbacks may change."""

    def __init__(self, variable: Any) -> None:
        self._variable = variable
        self._value, self._changes = self._read(), 0

    def is_due(self) -> bool:
        """Return whether it has changed since this was asked last, for the first, second, fourth, ... time."""
        value = self._read()
        has_changed, self._value = value != self._value, value
        self._changes += has_changed
        return has_changed and self._changes & (self._changes - 1) == 0

    def _read(self) -> bytes:
        return bytes(copies(self._variable)[0].numpy().tobytes())
