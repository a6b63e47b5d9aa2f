"""The validation of a fit: after which epochs, after how many steps within one, and what it gives to the logs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from mirrorkit.arguments import is_whole, whole_number
from mirrorkit.errors import StepError
from mirrorkit.train.input.input import Input


class Validation:
    """What a fit validates on, if on anything; see the arguments of `Loop.fit`.

    Attributes:
        every: after every so many steps of an epoch, but not at its end; None for its end alone.
        averaged: on the averages of the weights.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        data: Any,
        steps: int | None,
        freq: int | Sequence[int],
        every: int | None,
        averaged: bool,
    ) -> None:
        self._epochs = _epochs(freq)
        if every is not None:
            every = whole_number("validate_every", every, StepError, or_else=", or None")
            if data is None:
                raise StepError(f"validate_every={every} was asked for, but there is no validation_data. Pass it too.")
        self._data = None if data is None else Input(strategy, data, steps=steps, of="of the validation")
        self.every, self.averaged = every, averaged

    @property
    def asked(self) -> dict[str, object]:
        """What all workers must ask for."""
        if self._data is None:
            return {}
        return {"validation": (self._epochs, self._data.global_batch_size, self._data.steps, self.every)}

    def comes_after(self, epoch: int) -> bool:
        """Whether one comes at the end of an epoch, counted from 0."""
        if self._data is None:
            return False
        return epoch + 1 in self._epochs if isinstance(self._epochs, list) else (epoch + 1) % self._epochs == 0

    def falls_within(self, before: int, after: int) -> bool:
        """Whether one comes where a call ends that began after so many batches of the epoch."""
        return self.every is not None and after // self.every > before // self.every

    def logs(self, passes: Any, hooks: Any) -> dict[str, Any]:
        """Validate, and return its logs with Keras's prefix."""
        if self._data is None:  # a run goes on that had something to validate on
            return {}
        logs = passes.test(self._data, hooks, averaged=self.averaged, within=True)
        return {f"val_{name}": value for name, value in logs.items()}


def _epochs(validation_freq: Any) -> int | list[int]:
    """Return after how many epochs to validate, or after which, counted from 1; NumPy's numbers as ints."""
    if isinstance(validation_freq, (list, tuple)) and all(is_whole(epoch) for epoch in validation_freq):
        return [int(epoch) for epoch in validation_freq]
    or_else = ", or a list of epochs (the first is 1)"
    return whole_number("validation_freq", validation_freq, StepError, or_else=or_else)
