"""SIGTERM (preemption) and Ctrl-C, remembered until a training run can save and leave."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import TypeAlias

import tensorflow as tf

from mirrorkit.strategy import of_all_workers

# What signal.signal returns; None where the handler was not installed from Python.
Handler: TypeAlias = "Callable[[int, FrameType | None], object] | int | None"


class StopSignals:
    """Catches SIGTERM and SIGINT between `install` and `restore`.

    Only the main thread can catch signals: in any other, `install` does nothing. A signal that the process ignores (as
    SIGINT under nohup) stays ignored. A second Ctrl-C interrupts at once.
    """

    def __init__(self) -> None:
        self.received = 0
        self._before: dict[int, Handler] = {}

    def install(self) -> None:
        """Begin to catch; does nothing the second time."""
        if self._before or threading.current_thread() is not threading.main_thread():
            return
        self.received = 0
        for number in (signal.SIGTERM, signal.SIGINT):
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._receive)

    def restore(self) -> None:
        """Put back what handled the signals before; does nothing where nothing was installed."""
        while self._before:
            number, handler = self._before.popitem()
            # None: a handler that was not installed from Python, and that Python cannot put back
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self.received == signal.SIGINT:
            signal.default_int_handler(number, frame)
        # not print: the signal may have come in the middle of one
        again = " (Ctrl-C again interrupts at once)" if number == signal.SIGINT else ""
        os.write(2, f"\n{signal.Signals(number).name}: saving a checkpoint after this call{again}\n".encode())
        self.received = number


def agreed_signal(strategy: tf.distribute.Strategy, signals: StopSignals) -> int:
    """Return the signal on which to save and leave now, 0 for none.

    This is the one place where it is decided whether to stop. It is asked after every call of many steps, on all
    workers of a cluster: what one of them received, all of them get.
    """
    return int(max(of_all_workers(strategy, signals.received)))
