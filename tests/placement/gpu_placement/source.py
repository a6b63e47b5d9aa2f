"""Where in the code an operation was made: the user's line, or mirrorkit's."""

from __future__ import annotations

import functools
import inspect
import os
import sysconfig
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import mirrorkit
from mirrorkit._keras import keras

# Here mirrorkit calls Keras, and the operation's name, with the layer's in it, says more.
_OF_THE_MODEL = {
    f"{name}.py".replace("/", os.sep)
    for name in (
        *("train/keras_model/calling", "train/keras_model/keras_operations"),
        *("train/replica_code/replaced", "train/replica_code/pure_step"),
        *("train/step/keras_compile", "train/step/functions", "train/totals/totals"),
        *("optim/functional", "private"),
    )
}
_HERE = str(Path(mirrorkit.__file__).resolve().parent) + os.sep


@functools.cache
def _libraries() -> tuple[str, ...]:
    packages = [str(Path(inspect.getfile(module)).resolve().parent) + os.sep for module in (tf, keras, np)]
    standard = [sysconfig.get_paths()[name] + os.sep for name in ("stdlib", "platstdlib")]
    return (*packages, *standard)


def line_of(op: Any) -> str:
    """Return "file.py:12" for the innermost line that is the user's or mirrorkit's, or "" where Keras made it."""
    for frame in reversed(op.traceback or ()):
        path = os.path.realpath(frame.filename)
        if path.startswith(_HERE):
            own = path.removeprefix(_HERE)
            return "" if own in _OF_THE_MODEL else f"mirrorkit/{own}:{frame.lineno}"
        if not path.startswith(_libraries()) and "-packages" + os.sep not in path:
            return f"{os.path.basename(path)}:{frame.lineno}"
    return ""
