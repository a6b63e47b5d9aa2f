"""What Keras has no public names for: which variable it is about to create, and which variables wait for values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from mirrorkit import private
from mirrorkit._keras import keras

_WAITING = "uninitialized_variables"


class Creation(NamedTuple):
    """A Keras variable that is about to get its value."""

    path: str
    rank: int
    trainable: bool


_creations: list[Creation] = []


def in_creation() -> Creation | None:
    """Return the variable for which Keras creates one of TensorFlow's now, within `seeing_creations`."""
    return _creations[-1] if _creations else None


@contextmanager
def seeing_creations() -> Iterator[None]:
    """Let `in_creation` know Keras's variables in the block.

    TensorFlow's variable creators learn a variable's name alone ("kernel"), and Keras gives variables
    their values later than their paths where a model is built by a symbolic call.
    """

    def seen(initialize: Callable[..., None], variable: Any, value: Any) -> None:
        shape = variable.shape if callable(value) else np.shape(value)
        _creations.append(Creation(variable.path, len(shape), bool(variable.trainable)))
        try:
            initialize(variable, value)
        finally:
            _creations.pop()

    with private.replace("Variable._initialize", seen):
        yield


@contextmanager
def without_values() -> Iterator[None]:
    """Let models be built in the block whose variables never get values, so that none is allocated.

    A `StatelessScope` leaves the variables that it does not initialize on a list, and the next one
    would.
    """
    before = list(private.get("global_state.get_global_attribute")(_WAITING, []))
    try:
        with keras.StatelessScope(initialize_variables=False):
            yield
    finally:
        private.get("global_state.set_global_attribute")(_WAITING, before)
