"""Callbacks that watch a log: whether it is to rise or to fall."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any


def choose_modes(hooks: Any, modes: Mapping[str, str]) -> None:
    """Tell callbacks whether the log that they watch is to rise or to fall, where they leave it to Keras to find out.

    Keras asks the model's own metrics, which only its own training fills. `modes` has "max" or "min" for each log name.
    """
    for callback in hooks.callbacks:
        watched = getattr(callback, "monitor", None)
        if isinstance(watched, str) and getattr(callback, "mode", None) == "auto":
            callback.mode = modes.get(watched.removeprefix("val_"), "auto")
        # Private to Keras: it turns the sign of `min_delta`, once, at the end of the first epoch. A resumed run that
        # was given the turned one would turn it back; so it is turned before what changes in the run is noted.
        if hasattr(callback, "_set_monitor_op") and getattr(callback, "monitor_op", callback) is None:
            with contextlib.suppress(ValueError):  # no such log; Keras says so at the end of the first epoch
                callback._set_monitor_op()
