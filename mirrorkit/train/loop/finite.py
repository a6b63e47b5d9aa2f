"""Check that everything a step changes stays finite: a weight can become NaN although the loss does not."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from mirrorkit._types import KerasCallback, Variable
from mirrorkit.errors import NonFiniteLossError
from mirrorkit.strategy import of_all_workers
from mirrorkit.train.callback import tell_non_finite
from mirrorkit.train.checkpoints.position import Position
from mirrorkit.train.step.loop_step import LoopStep
from mirrorkit.variables import distinct, path

_log = logging.getLogger("mirrorkit")

_SHARE = 0.005  # of the training time, at most: large weights are checked less often


class FiniteWatch:
    """Checks the variables of a step during a fit.

    Infinities are accepted where they are present at the beginning (a mask of -inf), and in layer state that no update
    writes, where a callback put them. A NaN never is.

    Attributes:
        watched: the variables that it checks.
        began_with_nan: the paths of those that held a NaN at the beginning.
    """

    def __init__(
        self, strategy: tf.distribute.Strategy, step: LoopStep, position: Position, callbacks: Sequence[KerasCallback]
    ) -> None:
        self._strategy, self._step = strategy, step
        self._position, self._callbacks = position, callbacks
        known = step.variables or step.model.variables  # a step of the user's own need not say what it changes
        floats = [variable for variable in known if tf.as_dtype(variable.dtype).is_floating]
        begin = time.perf_counter()
        bad = _not_finite(floats)
        self.began_with_nan = [path(variable) for variable in bad if _has_nan(variable)]
        if self.began_with_nan:
            _log.warning("%s: NaN when the fit begins. Look where it comes from.", _shown(self.began_with_nan))
        self._masks = [variable for variable in bad if not _has_nan(variable)]  # which may hold infinities
        self.watched = _without(floats, bad)
        self._good = position.steps  # after so many steps all was finite
        self._looked(begin)

    @property
    def is_due(self) -> bool:
        """Whether a check now takes little of the time since the last one."""
        return self.watched != [] and time.perf_counter() - self._end > self._seconds / _SHARE

    def stop(self) -> None:
        """Check no more: the loss is not finite, and the weights will follow it."""
        self.watched, self._masks = [], []

    def require(self) -> None:
        """Raise an error, on all workers together, where a variable is no longer finite; all of them must call it."""
        begin = time.perf_counter()
        found = self.found()
        if found is not None:
            error = self._error(found)
            tell_non_finite(self._callbacks, error)
            raise error
        self._good = self._position.steps
        self._looked(begin)

    def found(self) -> list[str] | None:
        """Return the variables that are no longer finite (none where another worker has them), or None; collective."""
        bad = _not_finite(self.watched)
        kept = set(map(id, getattr(self._step, "kept", ()) if bad else ()))
        masks = [variable for variable in bad if id(variable) in kept and not _has_nan(variable)]
        self.watched = _without(self.watched, masks)
        self._masks += masks
        bad = [*_without(bad, masks), *filter(_has_nan, self._masks)]
        return [path(variable) for variable in bad] if max(of_all_workers(self._strategy, bool(bad))) else None

    def _looked(self, begin: float) -> None:
        self._end = time.perf_counter()
        self._seconds = self._end - begin

    def _error(self, found: list[str]) -> NonFiniteLossError:
        first, last = self._good, self._position.steps - 1
        when = f"in one of the training steps {first} to {last}" if first < last else f"in training step {last}"
        if first > last:
            when = f"after training step {last}, so a callback wrote it"
        who = f"The variable {_shown(found)}" if found else "A variable of another worker, whose error names it,"
        return NonFiniteLossError(
            f"{who} became NaN or infinite {when} (epoch {self._position.epoch}; counted from 0), while the loss "
            "stayed finite. The cause may be a NaN in the data that a ReLU hides, or a gradient that is not finite. "
            "callbacks=[mk.checks.NanWatch()] names the batch and the layer; mk.checks.find_non_finite(step, batch) "
            "looks at one batch. Checkpoints from before are whole.",
            step=max(last, 0),
            epoch=self._position.epoch,
            batch=max(self._position.batch - 1, 0),
            variable=found[0] if found else "",
        )


def _not_finite(variables: Sequence[Variable]) -> list[Variable]:
    """Return those that hold a NaN or an infinity, on the replicas of this worker."""
    # A sum of squares reads the numbers once and writes none. It may overflow; then each number is looked at.
    squares = [_squares(copy) for variable in variables for copy in distinct(variable)]
    if not squares or bool(tf.math.is_finite(tf.add_n(squares))):
        return []
    return [v for v in variables if not all(np.isfinite(copy.numpy()).all() for copy in distinct(v))]


def _squares(copy: tf.Variable) -> tf.Tensor:
    """Return the sum of the squares of a variable's values (float64), computed where they lie."""
    with tf.device(copy.device):
        values = tf.convert_to_tensor(copy)
        return tf.cast(tf.nn.l2_loss(values if values.dtype.size > 2 else tf.cast(values, tf.float32)), tf.float64)


def _has_nan(variable: Variable) -> bool:
    return any(np.isnan(copy.numpy()).any() for copy in distinct(variable))


def _without(variables: Sequence[Variable], others: Sequence[Variable]) -> list[Variable]:
    left_out = set(map(id, others))
    return [variable for variable in variables if id(variable) not in left_out]


def _shown(paths: Sequence[str]) -> str:
    return paths[0] if len(paths) == 1 else f"{paths[0]} (and {len(paths) - 1} more)"
