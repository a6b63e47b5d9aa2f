"""A stopwatch that waits for the devices: without it, queued work on a GPU looks as if it took no time."""

from __future__ import annotations

import sys
import time

from typing_extensions import Self


class Timer:
    """Measures the wall-clock seconds of a block, from idle devices to idle devices.

    ```python
    with Timer() as timer:
        for epoch in range(3):
            train_one_epoch()
            timer.lap()
    timer.laps, timer.seconds
    ```

    Every start, lap and end waits until all devices of this process have finished what was queued on them
    (https://www.tensorflow.org/api_docs/python/tf/test/experimental/sync_devices). Take laps between long calls, not
    inside a step; inside a `tf.function` they raise RuntimeError.

    Attributes:
        laps: seconds of each lap, in order; the time after the last lap is in `seconds` only.
    """

    def __init__(self) -> None:
        """Make a timer that has not run yet."""
        self.laps: list[float] = []
        self._start = self._last = 0.0
        self._end: float | None = 0.0

    def __enter__(self) -> Self:
        """Wait for the devices and start from zero."""
        self.laps = []
        wait_for_devices()
        self._start = self._last = time.perf_counter()
        self._end = None
        return self

    def __exit__(self, *_: object) -> None:
        """Wait for the devices and stop."""
        wait_for_devices()
        self._end = time.perf_counter()

    def lap(self) -> float:
        """End a lap and return its seconds."""
        wait_for_devices()
        now = time.perf_counter()
        self.laps.append(now - self._last)
        self._last = now
        return self.laps[-1]

    @property
    def seconds(self) -> float:
        """Seconds from start to end, or to now (without waiting for the devices) while the block still runs."""
        return (time.perf_counter() if self._end is None else self._end) - self._start


def wait_for_devices() -> None:
    """Wait until all devices of this process have finished what was queued on them."""
    # A program that has not imported TensorFlow has nothing queued; importing it here would be timed as its work.
    if "tensorflow" in sys.modules:
        import tensorflow as tf

        # In a cluster the devices of the other tasks are listed too, and cannot be waited for. A name without a task is
        # this one's.
        task = tf.constant(0).device.partition("/device:")[0]
        devices = [device.name for device in tf.config.list_logical_devices()]
        own = [name for name in devices if name.startswith((task, "/device:"))]
        if len(own) == len(devices):
            tf.test.experimental.sync_devices()
        else:
            for name in own:
                with tf.device(name):
                    tf.raw_ops.SyncDevice()
