"""The path that Keras is about to give a variable."""

from __future__ import annotations

from mirrorkit._keras import keras


def current_path() -> str:
    """Return the scopes of Keras in which a variable is created now: "block0/attention/query".

    Private to Keras: TensorFlow's variable creators learn a variable's name alone ("kernel"), and Keras knows the path
    of a layer only while it builds it.
    """
    path: str = keras.src.backend.common.name_scope.current_path()
    return path
