"""What Keras has no public names for: a variable's path while it is created, and which variables wait for values."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mirrorkit._keras import keras

_WAITING = "uninitialized_variables"


def current_path() -> str:
    """Return the scopes of Keras in which a variable is created now: "block0/attention/query".

    Private to Keras: TensorFlow's variable creators learn a variable's name alone ("kernel"), and Keras knows the path
    of a layer only while it builds it.
    """
    path: str = keras.src.backend.common.name_scope.current_path()
    return path


@contextmanager
def without_values() -> Iterator[None]:
    """Let models be built in the block whose variables never get values, so that none is allocated.

    Private to Keras: a `StatelessScope` leaves the variables that it does not initialize on a list, and the next one
    would.
    """
    state = keras.src.backend.common.global_state
    before = list(state.get_global_attribute(_WAITING, []))
    with keras.StatelessScope(initialize_variables=False):
        yield
    state.set_global_attribute(_WAITING, before)
