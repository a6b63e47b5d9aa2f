"""Where in the code an operation was made: the user's line, or mirrorkit's."""

from __future__ import annotations

import functools
import os
import sysconfig
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from mirrorkit._keras import keras

_HERE = str(Path(__file__).resolve().parents[1]) + os.sep


@functools.cache
def _libraries() -> tuple[str, ...]:
    packages = [str(Path(module.__file__).resolve().parent) + os.sep for module in (tf, keras, np)]
    # TensorFlow's modules lie beside those of its public API.
    packages += [folder.replace("_api/v2/", "") for folder in packages]
    standard = [sysconfig.get_paths()[name] + os.sep for name in ("stdlib", "platstdlib")]
    return tuple([*packages, *standard])


def line_of(op: Any) -> str:
    """Return "file.py:12" for the innermost line that is the user's or mirrorkit's, or "" where there is none."""
    for frame in reversed(op.traceback or ()):
        path = os.path.realpath(frame.filename)
        if path.startswith(_HERE):
            return f"mirrorkit/{path.removeprefix(_HERE)}:{frame.lineno}"
        in_library = path.startswith(_libraries()) and "site-packages" not in path.removeprefix(_HERE)
        if not (in_library or _is_package(path)):
            return f"{os.path.basename(path)}:{frame.lineno}"
    return ""


def _is_package(path: str) -> bool:
    return any(f"{os.sep}{name}{os.sep}" in path for name in ("site-packages", "dist-packages")) or path.startswith("<")
