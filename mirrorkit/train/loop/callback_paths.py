"""Where Keras's callbacks write: an address that cannot be written to is refused before the first step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from mirrorkit._keras import keras
from mirrorkit.object_storage import require_local

_PATHS = {
    keras.callbacks.TensorBoard: "log_dir",
    keras.callbacks.ModelCheckpoint: "filepath",
    keras.callbacks.CSVLogger: "filename",
}
_CURE = (
    "Name a local path, and copy it to the address at the end of each epoch; docs/watching.md shows how: "
    "'Logs at an address'."
)


def require_writable(callbacks: Sequence[Any]) -> None:
    """Refuse addresses that TensorFlow cannot open, which would fail within the training, or at its end."""
    for callback in callbacks:
        for kind, attribute in _PATHS.items():
            if isinstance(callback, kind):
                # CSVLogger closes its file as only Python's own can be closed.
                schemes = [] if kind is keras.callbacks.CSVLogger else tf.io.gfile.get_registered_schemes()
                require_local(type(callback).__name__, getattr(callback, attribute, ""), schemes=schemes, cure=_CURE)
