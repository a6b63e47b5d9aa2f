"""The only module that imports Keras, so that an unusable Keras raises a clear error at first use.

The rest of the package writes `from mirrorkit._keras import keras`.
"""

from __future__ import annotations

import os
from types import ModuleType

from mirrorkit.errors import BackendError
from mirrorkit.supported import KERAS, written


def _import_keras() -> ModuleType:
    if os.environ.get("TF_USE_LEGACY_KERAS", "").lower() in ("1", "true"):
        raise BackendError(
            "mirrorkit needs Keras 3, but TF_USE_LEGACY_KERAS switches tf.keras to Keras 2. "
            "Unset TF_USE_LEGACY_KERAS before the program starts."
        )
    asked = os.environ.get("KERAS_BACKEND", "tensorflow")
    if asked != "tensorflow":
        raise BackendError(
            f"mirrorkit runs on Keras's TensorFlow backend, but KERAS_BACKEND={asked!r}. "
            "Set KERAS_BACKEND=tensorflow, or unset it, before the program starts."
        )
    try:
        import keras
    except ImportError as error:
        raise BackendError(
            f"Keras cannot be imported: {error}. mirrorkit runs on its TensorFlow backend: set "
            "KERAS_BACKEND=tensorflow before the program starts, or install TensorFlow (pip install tensorflow)."
        ) from error

    version = tuple(int(part) for part in keras.__version__.split(".")[:2])
    if version < KERAS[0]:
        raise BackendError(
            f"mirrorkit needs Keras {written(KERAS[0])} or newer, found {keras.__version__}. "
            "Run: pip install --upgrade keras"
        )
    if keras.config.backend() != "tensorflow":
        raise BackendError(
            f"mirrorkit runs on Keras's TensorFlow backend, but Keras's configuration file selects "
            f"{keras.config.backend()!r}. Set KERAS_BACKEND=tensorflow before the program starts."
        )
    return keras


keras = _import_keras()
