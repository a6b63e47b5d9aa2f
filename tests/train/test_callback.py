"""What callbacks tell the loop, and the loop them."""

from __future__ import annotations

from typing import Any

import pytest

from mirrorkit._keras import keras
from mirrorkit.errors import NonFiniteLossError
from mirrorkit.train.callback import LoopCallback, call_periods


class _Periodic(LoopCallback):
    def __init__(self, period: Any, every: Any = None) -> None:
        super().__init__()
        self._period, self.every = period, every

    @property
    def call_period(self) -> Any:
        return self._period


class _OfTheUser(keras.callbacks.Callback):
    """Knows the loop without being a LoopCallback."""

    def __init__(self, every: Any) -> None:
        super().__init__()
        self.every = every

    def set_loop(self, loop: Any) -> None:
        pass


def test_periods_are_asked_of_callbacks_that_know_the_loop() -> None:
    without_set_loop = keras.callbacks.Callback()
    without_set_loop.every = 7
    without_every = _OfTheUser(1)
    del without_every.every
    callbacks = [_Periodic(5, every=4), _Periodic(None, every=3), _OfTheUser(2), _OfTheUser("often")]
    assert call_periods([*callbacks, without_set_loop, without_every]) == [5, 2]


def test_a_loop_callback_wants_nothing_by_itself() -> None:
    callback = LoopCallback()
    assert callback.call_period is None
    callback.on_non_finite_loss(NonFiniteLossError("a message", step=0, epoch=0, batch=0))
    callback.release()
    with pytest.raises(AssertionError):
        _ = callback.loop
