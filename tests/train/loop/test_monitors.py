"""Callbacks that watch a log learn from the loop whether it is to rise or to fall, before the training begins."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from installed_versions import KERAS

from mirrorkit._keras import keras
from mirrorkit.train.loop.monitors import choose_modes

C = keras.callbacks


def _hooks(*watching: Any) -> Any:
    return C.CallbackList(list(watching), model=SimpleNamespace(metrics=[]))


@pytest.mark.skipif(KERAS < (3, 11), reason="callbacks have no mode")
def test_modes_are_chosen_where_keras_would_ask_the_model() -> None:
    watching = [
        C.EarlyStopping("val_auc"),
        C.EarlyStopping("loss"),
        C.EarlyStopping("auc", mode="min"),
        C.EarlyStopping("other"),
        C.History(),
    ]
    choose_modes(_hooks(*watching), {"auc": "max", "loss": "min"})
    assert [callback.mode for callback in watching[:-1]] == ["max", "min", "min", "auto"]
    assert not hasattr(watching[-1], "mode")


@pytest.mark.parametrize(("mode", "sign"), [("min", -1), ("max", 1)])
def test_the_sign_of_the_least_change_is_settled_before_a_run_begins(mode: str, sign: int) -> None:
    """Keras turns it, once, where it first compares: what was saved of it would be turned again in a resumed run."""
    plateau = C.ReduceLROnPlateau("auc", min_delta=0.5, mode=mode)
    for _ in range(2):
        choose_modes(_hooks(plateau), {})
        assert plateau.min_delta == sign * 0.5


def test_a_log_that_keras_knows_no_way_for_is_left_to_keras() -> None:
    stopping = C.EarlyStopping("other", mode="auto" if KERAS >= (3, 11) else "max")
    choose_modes(_hooks(stopping), {})
    assert KERAS < (3, 11) or stopping.monitor_op is None
