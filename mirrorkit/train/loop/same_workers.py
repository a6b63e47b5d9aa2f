"""Whether the variables of the workers of a fit hold the same before it and after each epoch."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from mirrorkit import reproducible
from mirrorkit.errors import OutOfSyncError
from mirrorkit.strategy import addresses, arrays_of_all_workers, require_same
from mirrorkit.train.callback import LoopCallback
from mirrorkit.train.first_batch.fingerprints import fingerprints, parted
from mirrorkit.variables import copies, is_sharded, native, path

# How far a variable may part, in parts of its norm: a thousand times what processors that round differently make of it
# in thousands of steps, as they all apply the same sums.
_ROUNDING = 1e-4
_OF_INTEGERS = 1e-12  # their sums in float64 round too


class SameWorkers(LoopCallback):
    """Compares the workers before the first step of a fit and after each epoch; `Loop` adds it to the callbacks.

    It comes after the user's callbacks, so that it sees what they wrote, and before `Checkpoints`.

    Args:
        values: whether to compare variables.
    """

    def __init__(self, *, values: bool) -> None:
        super().__init__()
        self._values = values
        self._begins = True

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Compare once where the training begins, and with what."""
        if self._begins:
            self._begins = False
            where = {"first epoch": epoch, "first batch": self.loop.position.batch}
            require_same(self.loop.strategy, "beginning of fit", where)
            self._compare("before the first step")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Compare what the epoch and the callbacks after it left."""
        self._compare(f"after epoch {epoch} (counted from 0)")

    def _compare(self, when: str) -> None:
        if self._values:
            require_same_values(self.loop.strategy, getattr(self.loop.step, "variables", []), when)


def require_same_values(strategy: tf.distribute.Strategy, variables: list[Any], when: str) -> None:
    """Refuse workers of which one holds other values than the others; in reproducible mode, other bits. Collective."""
    variables = [variable for variable in variables if _is_everywhere(variable)]
    values = [tf.convert_to_tensor(copies(variable)[0]) for variable in variables]
    exact = reproducible.is_enabled()
    every = arrays_of_all_workers(strategy, fingerprints(values, exact=exact))
    shares = np.array([_ROUNDING if value.dtype.is_floating else _OF_INTEGERS for value in values])
    rounding = 0.0 if exact else shares * np.nan_to_num(every[:, :, 0].max(0))
    for index, workers in parted(every, rounding):
        names = list(addresses(strategy))
        other, usual = (", ".join(n for i, n in enumerate(names) if (i in workers) is part) for part in (True, False))
        raise OutOfSyncError(
            f"The variable {path(variables[index])!r} has different values on {other} than on {usual}, {when}; all "
            "must hold the same. A callback or other code wrote it on only some of them, or wrote values of a clock or "
            "of a generator without a seed; or the scripts differ. Start again from the newest checkpoint."
        )


def _is_everywhere(variable: Any) -> bool:
    """Whether every worker is to hold the same numbers."""
    on_read = getattr(native(variable), "synchronization", None) == tf.VariableSynchronization.ON_READ
    return not on_read and not is_sharded(variable) and tf.as_dtype(variable.dtype) != tf.string
