"""A trace of chosen training steps by TensorFlow's profiler, as a Keras callback."""

from __future__ import annotations

import os
from typing import Any

import tensorflow as tf

from mirrorkit._keras import keras
from mirrorkit.arguments import is_whole
from mirrorkit.errors import StepError
from mirrorkit.object_storage import require_local
from mirrorkit.timing.timer import wait_for_devices


class Profile(keras.callbacks.Callback):  # type: ignore[name-defined]
    """What `mk.timing.profile` makes; see there.

    Attributes:
        log_dir: where the trace is written.
        profiled: (first, last + 1) of the training steps that the trace holds; None before it is written.
    """

    def __init__(self, log_dir: str | os.PathLike[str], steps: tuple[int, int]) -> None:
        super().__init__()
        self._first, self._end = steps
        if not (is_whole(self._first, 0) and is_whole(self._end, self._first + 1)):
            raise StepError(
                f"profile(steps={steps}) was asked for; give (first, end), whole numbers with 0 <= first < end, as in "
                "(10, 20)."
            )
        require_local("profile", log_dir, schemes=tf.io.gfile.get_registered_schemes())
        self.log_dir = os.fspath(log_dir)
        self.profiled: tuple[int, int] | None = None
        self._before = 0  # steps of the epochs before
        self._done = 0  # steps so far
        self._began: int | None = None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Count batches from 0 again."""
        self._before = self._done

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Start before the first call that contains one of the steps."""
        if self._began is None and self.profiled is None and self._before + batch >= self._first:
            wait_for_devices()
            tf.profiler.experimental.start(self.log_dir)
            self._began = self._before + batch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Stop after the call that contains the last one."""
        self._done = self._before + batch + 1
        if self._done >= self._end:
            self._stop()

    def on_train_end(self, logs: Any = None) -> None:
        """Stop where training was shorter."""
        self._stop()

    def get_state(self) -> None:
        """Return that it remembers nothing: it profiles this process."""

    def release(self) -> None:
        """Stop where the training ended by an error: a second profiler could not start. Nothing waits for devices."""
        if self._began is not None:
            tf.profiler.experimental.stop(save=False)
            self._began = None

    def _stop(self) -> None:
        if self._began is not None:
            wait_for_devices()
            tf.profiler.experimental.stop()
            self.profiled, self._began = (self._began, self._done), None
