"""Callbacks that know the loop: what `Loop` tells them in addition to what Keras tells every callback."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from mirrorkit._keras import keras
from mirrorkit.arguments import is_whole
from mirrorkit.errors import NonFiniteLossError

Loop: TypeAlias = Any  # mirrorkit.train.Loop, which is built upon this


class LoopCallback(keras.callbacks.Callback):  # type: ignore[name-defined, misc]
    """A Keras callback that `Loop` tells more."""

    compares_replicas = False  # whether it compares the variables of all workers itself
    stop_signal: int | None = None  # the number of that it has received, 0 for none; None where it catches none
    loop: Loop = None

    def set_loop(self, loop: Loop) -> None:
        """Take the loop; it calls this before the training begins."""
        self.loop = loop

    def on_stop_signal(self, number: int) -> None:
        """Save, and leave the training: a worker of this training has received a signal to stop.

        Called on all workers, and between calls of steps.
        """

    def on_non_finite_loss(self, error: NonFiniteLossError) -> None:
        """Take note of a loss that is not finite, or raise an error that says more than `error`, the loop's own.

        With `keras.callbacks.TerminateOnNaN` the loop does not: the training ends after the present call of steps.
        """

    def release(self) -> None:
        """Release what belongs to others, however the training ended."""


def tell_non_finite(callbacks: Sequence[Any], error: NonFiniteLossError) -> None:
    """Let the callbacks that know the loop say more than `error`."""
    for callback in callbacks:
        if isinstance(callback, LoopCallback):
            callback.on_non_finite_loss(error)


def call_periods(callbacks: list[Any]) -> list[int]:
    """Return the numbers of training steps after which callbacks need a call to end.

    They are `every` of those that know the loop, and `save_freq` of Keras's ModelCheckpoint.
    """
    wanted: list[Any] = [getattr(one, "every", None) for one in callbacks if hasattr(one, "set_loop")]
    wanted += [one.save_freq for one in callbacks if isinstance(one, keras.callbacks.ModelCheckpoint)]
    return [period for period in wanted if is_whole(period)]
