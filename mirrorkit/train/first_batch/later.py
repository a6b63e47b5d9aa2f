"""The check of the first batch, repeated later: a counter or a callback may have switched on what it did not show."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import numpy as np
import tensorflow as tf

from mirrorkit._types import Batch
from mirrorkit.errors import StepError
from mirrorkit.strategy import is_chief
from mirrorkit.train.first_batch.check import first_batch_check
from mirrorkit.train.first_batch.sampled_rows import ROWS, take
from mirrorkit.train.step.supervised import Supervised
from mirrorkit.variables import copies

_SECONDS, _SHARE = 5.0, 0.01  # all later checks together: seconds, or a share of the training time if that is more
_SMALL = 16  # numbers in a variable, at most, that may be a switch


class LaterChecks:
    """Checks rows of the first batch again: after 10, 100, 1,000, ... steps of a loop, and after changes by callbacks.

    Such a change is the first one of a small variable that the step reads and no update writes.
    """

    def __init__(self, step: Any) -> None:
        self._step = step
        self._check = first_batch_check(step, again=True)
        # As many rows as a check looks at.
        self._most = ROWS if isinstance(step, Supervised) else 4 * step.strategy.num_replicas_in_sync + 2
        self._rows: Batch = None
        self._seen: Any = []  # small variables that callbacks may change, and their values
        self._right = 0  # after so many steps the last check found nothing
        self._trained = self._spent = self._last = 0.0  # seconds: of training, of later checks, of the last check

    def keeping(self, check: Any, steps: int) -> Any:
        """Return the `check` of a first batch so that it also keeps rows of it; without one, keep rows if none are."""
        if self._check is None or (check is None and self._rows is not None):
            return check

        def checked(batch: Batch) -> None:
            if check is not None:
                self._run(check, batch, steps)
            size = tf.nest.flatten(batch)[0].shape[0]
            self._rows = take(batch, np.linspace(0, size - 1, min(size, self._most), dtype=int))

        return checked

    def note(self, seconds: float) -> None:
        """Take in how long a call took; after the first one, remember what callbacks may change."""
        if self._check and not self._trained and isinstance(self._step, Supervised):
            read = self._step.functions.only_read
            self._seen = [(one, _value(one)) for one in read if np.prod(one.shape) <= _SMALL]
        self._trained += seconds

    def is_due(self, steps: int) -> bool:
        """Return whether to check after so many steps; on several workers the chief decides."""
        due = 10 ** len(str(self._right))
        is_wanted = steps >= due or any(_value(one) != before for one, before in self._seen)
        has_time = self._spent + self._last <= max(_SECONDS, _SHARE * self._trained)
        return self._rows is not None and is_wanted and has_time and is_chief(self._step.strategy)

    def check(self, steps: int) -> None:
        """Refuse a step that on parts of a batch no longer comes to what it does on all rows. Collective."""
        try:
            self._run(self._check, self._rows, steps)
        except StepError as error:
            self._step.checked.discard("train")  # so that the next fit begins with a check
            raise StepError(
                f"At step {steps} a batch is no longer what its parts are, as it was at step {self._right}: a counter, "
                f"a callback or other weights have changed what the step computes. {error} A checkpoint from before "
                f"step {self._right} is not affected."
            ) from error
        self._spent += self._last
        self._seen = [(one, before) for one, before in self._seen if _value(one) == before]

    def _run(self, check: Any, rows: Batch, steps: int) -> None:
        begin = perf_counter()
        check(rows)
        self._last, self._right = perf_counter() - begin, steps


def _value(variable: Any) -> Any:
    return copies(variable)[0].numpy().tobytes()
