"""The list of callbacks of a loop: order, who gets the loop, whose files they write, when all stop, what they watch."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from installed_versions import KERAS

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.errors import ClusterError, StepError
from mirrorkit.train.callback import LoopCallback
from mirrorkit.train.loop import callbacks as module
from mirrorkit.train.loop.callbacks import agree_to_stop, callback_list, choose_modes, release

C = keras.callbacks


@pytest.fixture
def loop() -> Any:
    """All that a list takes of a loop."""
    return SimpleNamespace(strategy=tf.distribute.get_strategy())


@pytest.fixture
def model() -> Any:
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile()
    return model


def _kinds(hooks: Any) -> list[type]:
    return [type(callback) for callback in hooks.callbacks]


def test_savers_come_last_in_the_users_order(loop: Any, model: Any, tmp_path: Path) -> None:
    saver, stop, plateau = mk.train.Checkpoints(tmp_path), C.EarlyStopping(), C.ReduceLROnPlateau()
    hooks = callback_list(loop, model, [saver, [stop, plateau]], verbose=1, history=True, epochs=2, steps=5)
    assert _kinds(hooks) == [C.EarlyStopping, C.ReduceLROnPlateau, C.History, C.ProgbarLogger, mk.train.Checkpoints]
    assert hooks.callbacks[:2] == [stop, plateau]
    assert hooks.params == {"verbose": 1, "epochs": 2, "steps": 5}
    assert stop.model is model
    assert saver.loop is loop


def test_what_was_given_is_not_added_again(loop: Any, model: Any) -> None:
    given = [C.History(), C.ProgbarLogger()]
    assert callback_list(loop, model, given, verbose=1, history=True, epochs=1, steps=1).callbacks == given
    assert callback_list(loop, model, None).callbacks == []
    assert callback_list(loop, model, C.CallbackList(given), epochs=1, steps=1).callbacks[:2] == given


def test_only_the_chief_writes(loop: Any, model: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    writers = [C.CSVLogger(tmp_path / "log.csv"), C.ModelCheckpoint(tmp_path / "a.keras"), C.TensorBoard(tmp_path)]
    given = [*writers, C.RemoteMonitor(), C.ProgbarLogger(), C.EarlyStopping()]
    assert len(callback_list(loop, model, given, verbose=1, epochs=1, steps=1).callbacks) == 6
    monkeypatch.setattr(module, "is_chief", lambda strategy: False)
    assert _kinds(callback_list(loop, model, given, verbose=1, epochs=1, steps=1)) == [C.EarlyStopping]


def test_backup_and_restore_is_refused(loop: Any, model: Any, tmp_path: Path) -> None:
    with pytest.raises(StepError, match=r"BackupAndRestore .*Checkpoints"):
        callback_list(loop, model, [[C.BackupAndRestore(tmp_path)]])


@pytest.mark.parametrize(("given", "match"), [(C.TerminateOnNaN, "'model'"), ("csv", "'str'")])
def test_what_is_no_callback_is_left_to_keras(given: Any, match: str, loop: Any, model: Any) -> None:
    with pytest.raises((TypeError, AttributeError), match=match):
        callback_list(loop, model, [C.TerminateOnNaN(), given])


@pytest.mark.parametrize(("others", "stops"), [([[0, 0], [0, 0]], False), ([[0, 0], [0, 1]], True)])
@pytest.mark.parametrize("mine", [False, True])
def test_all_stop_when_one_wants_to(
    mine: bool, others: list[list[int]], stops: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "arrays_of_all_workers", lambda strategy, value: np.array([*others, value]))
    model = SimpleNamespace(stop_training=mine)
    agree_to_stop(tf.distribute.get_strategy(), model, keras.callbacks.CallbackList())
    assert model.stop_training is (mine or stops)


def test_the_last_to_come_is_released_first(loop: Any, model: Any) -> None:
    released: list[str] = []

    class Holds(LoopCallback):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

        def release(self) -> None:
            released.append(self.name)

    release(callback_list(loop, model, [Holds("first"), C.EarlyStopping(), Holds("second")]))
    assert released == ["second", "first"]


def test_workers_must_have_the_same_callbacks_that_know_the_loop(
    line: Any, recipe: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here it is only said what they compare; tests/multiworker has two real ones."""
    given: list[str] = []

    def differs(strategy: Any, where: str, settings: Any) -> None:
        given.append(next(iter(settings.values())))
        raise ClusterError(where)

    monkeypatch.setattr(module, "num_workers", lambda strategy: 2)
    monkeypatch.setattr(module, "require_same", differs)
    for callback, name in (
        (mk.train.Checkpoints(tmp_path), "Checkpoints"),
        (mk.train.Checkpoints(tmp_path, every=3), "Checkpoints every 3 steps"),
        (mk.checks.InSync(), "InSync every 500 steps"),
        (mk.checks.NanWatch(), "NanWatch"),
    ):
        with pytest.raises(ClusterError, match="fit"):
            line.fit(recipe, callbacks=[keras.callbacks.EarlyStopping("loss"), callback], verbose=0)
        assert given.pop() == name
    assert not list(tmp_path.iterdir())


# --- callbacks that watch a log learn from the loop whether it is to rise or to fall, before the training begins


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
