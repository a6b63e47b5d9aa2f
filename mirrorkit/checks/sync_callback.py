"""The check of the replicas as a Keras callback."""

from __future__ import annotations

import warnings
from typing import Any

from mirrorkit.arguments import checks_arguments, whole_number
from mirrorkit.checks.sync import Replicas, replicas_of
from mirrorkit.errors import OutOfSyncError, StepError
from mirrorkit.train import Loop, LoopCallback, variables_of


class InSync(LoopCallback):
    """Checks every `every` steps, and at the end of training, that all replicas hold the same bits.

    ```python
    loop.fit(train, epochs=10, callbacks=[mk.checks.InSync(every=500)])
    ```

    It checks everything that the step changes: weights, layer state, optimizer slots. In Keras's own `fit` it checks
    the model and the optimizer.

    Args:
        every: training steps from one check to the next, rounded up to the end of a call of several steps.
        repair: copy replica 0 to all replicas and warn, instead of raising an error.

    Raises:
        OutOfSyncError: during training, if replicas differ; its `report` says which variable, where and by how much.
        StepError: `every` below 1; a step that does not say what it changes.
    """

    compares_replicas = True

    @checks_arguments(StepError)
    def __init__(self, *, every: int = 500, repair: bool = False) -> None:
        super().__init__()
        self.every = whole_number("every", every, StepError)
        self.repair = repair
        self._replicas: Replicas | None = None
        self._first = self._unchecked = 0

    def set_loop(self, loop: Loop) -> None:
        """Set the loop whose step is checked; Loop calls it."""
        variables_of(loop.step, "InSync would have nothing to compare")
        super().set_loop(loop)

    def get_state(self) -> int:
        """Return the number of steps since the last check."""
        return self._unchecked

    def set_state(self, state: int) -> None:
        """Take what `get_state` returned."""
        self._unchecked = state

    def on_train_begin(self, logs: Any = None) -> None:
        """Reset the count of steps."""
        self._replicas, self._unchecked = None, 0

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Record the first batch of the call."""
        self._first = batch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Check if a check is due."""
        self._unchecked += batch + 1 - self._first
        if self._unchecked >= self.every:
            self._check()

    def on_train_end(self, logs: Any = None) -> None:
        """Check once more if steps have passed since the last check."""
        if self._unchecked:
            self._check()

    def _check(self) -> None:
        self._unchecked = 0
        if self._replicas is None:
            self._replicas = self._find_replicas()
        report = self._replicas.check(repair=self.repair)
        if report:
            return
        if self.repair:
            warnings.warn(f"{report}. All replicas now have replica 0's values.", stacklevel=2)
            return
        raise OutOfSyncError(
            f"{report}. Either an update used a value that is not the same on all replicas (a gradient that was not "
            "reduced, state that a layer assigns itself), or a device computes wrong results "
            "(mk.devices.verify()). mk.checks.repair(strategy, step) copies replica 0 to all replicas.",
            report=report,
        )

    def _find_replicas(self) -> Replicas:
        if self.loop is not None:
            return replicas_of(self.loop.strategy, self.loop.step)
        return Replicas(self.model.distribute_strategy, [*self.model.variables, *self.model.optimizer.variables])
