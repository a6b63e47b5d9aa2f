"""Whether a number that a step reads has changed: a callback may switch on what the first batch did not show."""

from __future__ import annotations

from typing import Any

import numpy as np

from mirrorkit.train.step.supervised import Supervised
from mirrorkit.variables import copies

_SMALL = 16  # numbers in a variable, at most, that may be a switch


class Switches:
    """The small variables that a step reads and no update writes; an epoch that begins with others is told."""

    def __init__(self) -> None:
        self._seen: dict[int, np.ndarray] | None = None
        self._told = False

    def note(self, step: Any) -> None:
        """Remember the values of the first call, before callbacks are told of it."""
        if self._seen is None and isinstance(step, Supervised) and step.shards > 1:
            self._seen = _values(step)

    def changed(self, step: Any) -> bool:
        """Return, once, whether one has another value."""
        if self._seen is None or self._told:
            return False
        values = _values(step)
        self._told = any(key in values and np.any(values[key] != before) for key, before in self._seen.items())
        return self._told


def _values(step: Supervised) -> dict[int, np.ndarray]:
    small = [variable for variable in step.functions.only_read if np.prod(variable.shape) <= _SMALL]
    return {id(variable): copies(variable)[0].numpy() for variable in small}
