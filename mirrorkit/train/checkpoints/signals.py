"""SIGTERM (preemption) and Ctrl-C, remembered until a training run can save and leave."""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import Any

from mirrorkit import stop_signals


class StopSignals:
    """Catches SIGTERM and SIGINT between `install` and `restore`; a second Ctrl-C interrupts at once."""

    def __init__(self) -> None:
        self.received = 0
        self._before: dict[int, Any] = {}

    def install(self) -> None:
        """Begin to catch; does nothing the second time, or outside of the main thread."""
        if not self._before and stop_signals.can_catch():
            self.received = 0
            self._before = stop_signals.catch((signal.SIGTERM, signal.SIGINT), self._receive)

    def restore(self) -> None:
        """Put back what handled the signals before; does nothing where nothing was installed."""
        stop_signals.put_back(self._before)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self.received == signal.SIGINT:
            signal.default_int_handler(number, frame)
        # not print: the signal may have come in the middle of one
        again = " (Ctrl-C again interrupts at once)" if number == signal.SIGINT else ""
        os.write(2, f"\n{signal.Signals(number).name}: saving a checkpoint after this call{again}\n".encode())
        self.received = number
