"""What callbacks remember: what of it a checkpoint holds, what it must not hold, and who gets it back."""

from __future__ import annotations

import collections
import dis
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from checkpoint_helpers import bits, names, saved_at, spoil, write_as_other_version

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.errors import CheckpointError
from mirrorkit.train.checkpoints import file as checkpoint_file
from mirrorkit.train.checkpoints.callback_states import _REMEMBERED, CallbackStates, read_states

C = keras.callbacks


class Counts(C.Callback):  # type: ignore[name-defined, misc]
    """Changes attributes of all kinds, as users write it, and has a secret."""

    def __init__(self) -> None:
        super().__init__()
        self.constant = np.arange(3)
        self.layers = [keras.layers.Dense(1)]
        self.file: Any = None
        self.seen = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.seen += 1
        self.api_key = f"a secret of epoch {epoch}"
        self.file = print
        self.nothing = None


class Asked(C.Callback):  # type: ignore[name-defined, misc]
    """Says what it remembers."""

    def __init__(self, state: Any = None) -> None:
        super().__init__()
        self.state, self.given = state, []

    def get_state(self) -> Any:
        return self.state

    def set_state(self, state: Any) -> None:
        self.given.append(state)


def _read(states: CallbackStates) -> Any:
    about, arrays = states.saved()
    return read_states(about["callbacks"], arrays)


def _states(*callbacks: Any, tells: bool = True) -> CallbackStates:
    return CallbackStates(callbacks, {}, tells=tells)


def _told(name: str, *attributes: str) -> str:
    changed = ", ".join(map(repr, attributes))
    return (
        f"The callback {name} has changed {changed}, which checkpoints do not save. If a resumed run needs this, give "
        "the callback get_state(), which returns what to save, and set_state(state); if not, let get_state return None."
    )


def test_no_attribute_of_a_users_callback_is_in_the_file(fresh: Any, recipe: Any, tmp_path: Path, caplog: Any) -> None:
    """It may be a secret. What has changed is named once, with the cure."""
    callbacks = [mk.train.Checkpoints(tmp_path, every=2), Counts()]
    fresh.fit(recipe, epochs=2, callbacks=callbacks, verbose=0)
    files = list(tmp_path.glob("*.npz"))
    assert len(files) > 1
    assert not any(b"secret" in file.read_bytes() or b"Counts" in file.read_bytes() for file in files)
    told = [record for record in caplog.records if "Counts" in record.message]
    assert [(one.levelno, one.message) for one in told] == [(logging.WARNING, _told("Counts", "seen", "api_key"))]


def test_a_collection_is_named_when_it_has_grown(caplog: Any) -> None:
    class Recent(Counts):
        recent: Any = None

        def on_train_begin(self, logs: Any = None) -> None:
            self.recent = collections.deque(maxlen=3)

    one = Recent()
    one.on_train_begin()
    states = _states(one)
    assert _read(states) == []
    assert not caplog.records
    one.recent.append(1.0)
    for _ in range(2):
        assert _read(states) == []
    assert [record.message for record in caplog.records] == [_told("Recent", "recent")]


def test_of_keras_callbacks_their_state_is_saved_and_nothing_else(caplog: Any) -> None:
    stopping, monitor = C.EarlyStopping("loss", patience=3), C.RemoteMonitor(headers={})
    stopping.on_train_begin()
    states = _states(stopping, monitor, tells=True)
    stopping.wait, stopping.best, stopping.patience, stopping.api_key = 2, np.float32(0.5), 5, "a secret"
    stopping.best_weights = [np.ones(2)]
    monitor.headers["key"] = "a secret"
    about, arrays = states.saved()
    assert "secret" not in str(about)
    stopping.best_weights[0][0] = 7  # what is saved is a copy
    assert [array.tolist() for array in arrays] == [[1, 1]]
    ((name, kind, state),) = read_states(about["callbacks"], arrays)
    assert (name, kind) == ("EarlyStopping", "attributes")
    assert state.pop("best_weights")[0].tolist() == [1, 1]
    assert state == {"wait": 2, "best": np.float32(0.5), "best_epoch": 0, "stopped_epoch": 0}
    other = C.EarlyStopping("loss", patience=9)
    _states(other).restore([(name, kind, {**state, "patience": 5, "on_epoch_end": 1})])
    assert (other.wait, other.best, other.patience) == (2, np.float32(0.5), 9)  # this is the new run's
    assert callable(other.on_epoch_end)
    assert not caplog.records


def test_of_a_callback_that_knows_the_loop_too(caplog: Any) -> None:
    class Stops(mk.train.LoopCallback, C.EarlyStopping):  # type: ignore[name-defined, misc]
        pass

    stops = Stops("loss")
    stops.on_train_begin()
    stops.wait = 2
    ((_, kind, state),) = _read(_states(stops))
    assert (kind, state["wait"]) == ("attributes", 2)


def test_a_best_value_that_is_a_tensor_ends_no_training(caplog: Any) -> None:
    """Another callback may have put it into the logs; the callback that remembers it starts afresh."""
    one = C.EarlyStopping()
    states = _states(one)
    one.best = tf.constant(1.0)
    assert _read(states) == []
    _states(C.EarlyStopping()).restore([])
    assert caplog.messages == ["The checkpoint has no state of this callback EarlyStopping; it starts afresh."]


def _set_after_the_beginning(kind: type) -> set[str]:
    """The attributes that methods of Keras's class set, other than those with which it begins."""
    beginnings = ("__init__", "on_train_begin", "set_model", "set_params", "_set_monitor_op", "_configure_embeddings")
    members = [member for name, member in vars(kind).items() if name not in beginnings]
    codes = [member.__code__ for member in members if hasattr(member, "__code__")]
    return {one.argval for code in codes for one in dis.get_instructions(code) if one.opname == "STORE_ATTR"}


KINDS = {kind.__name__ for kind in vars(C).values() if isinstance(kind, type)}


@pytest.mark.parametrize("name", sorted(KINDS - {"BackupAndRestore", "Callback", "CallbackList"}))
def test_what_keras_callbacks_change_is_saved(name: str) -> None:
    """So a Keras whose callback remembers something else is noticed."""
    left = {  # of the model; what others save; objects, clocks; what belongs to the process, or to a progress bar
        "CSVLogger": "writer",
        "EarlyStopping": "stop_training",
        "History": "history",
        "LearningRateScheduler": "learning_rate",
        "ProgbarLogger": "progbar seen target",
        "ReduceLROnPlateau": "learning_rate",
        "TensorBoard": "_batch_start_time _batch_trace_context _epoch_start_time _is_tracing _previous_epoch_iterations"
        " _profiler_started _should_trace _should_write_train_graph _start_batch _stop_batch",
        "TerminateOnNaN": "stop_training",
    }
    saved = set(_REMEMBERED.get(name, "").split())
    found = _set_after_the_beginning(getattr(C, name)) - set(left.get(name, "").split())
    assert found == saved - ({"epoch"} if name == "History" else set())  # a list that is appended to


def test_a_callback_that_cannot_take_its_state_is_named() -> None:
    class Picky(Asked):
        def set_state(self, state: Any) -> None:
            raise KeyError(0)

    with pytest.raises(CheckpointError, match=r"Picky .*KeyError: 0"):
        _states(Picky()).restore([("Picky", "state", 1)])


def test_a_state_that_cannot_be_saved_or_given_back_is_refused_at_the_beginning() -> None:
    with pytest.raises(CheckpointError, match=r"Asked .*builtins\.set"):
        _states(Asked({1, 2}))

    class OneWay(C.Callback):  # type: ignore[name-defined, misc]
        def get_state(self) -> int:
            return 1

    with pytest.raises(CheckpointError, match=r"OneWay .*set_state"):
        _states(OneWay())


def test_callbacks_are_known_by_name_and_order(caplog: Any) -> None:
    states = [("ReduceLROnPlateau", "attributes", {"wait": n}) for n in (1, 2)] + [("Gone", "state", np.ones(2))]
    one, two = C.ReduceLROnPlateau(), C.ReduceLROnPlateau()
    given = [C.EarlyStopping(), one, Asked(1), two, mk.train.Checkpoints("a")]
    _states(*given, tells=False).restore(states)  # of workers other than the chief
    assert not caplog.records
    _states(*given).restore(states)
    assert (one.wait, two.wait) == (1, 2)
    assert caplog.messages == [
        "The checkpoint has no state of this callback EarlyStopping; it starts afresh.",
        "The checkpoint has no state of this callback Asked; it starts afresh.",
        "The checkpoint has the state of a callback Gone, which this fit does not take; left out.",
    ]


def test_a_checkpoint_of_format_1_is_read(fresh: Any, recipe: Any, tmp_path: Path, caplog: Any) -> None:
    fresh.fit(recipe, epochs=1, callbacks=[mk.train.Checkpoints(tmp_path)], verbose=0)
    expected = bits(fresh)
    (name,) = names(tmp_path)
    assert [name] == saved_at(5)
    about, values = checkpoint_file.read(tmp_path / name)
    position = {key: value for key, value in about["position"].items() if key != "stopping"}
    old = {"format": 1, "variables": about["variables"], "position": position}
    write_as_other_version(tmp_path / name, old, {str(i): value for i, value in enumerate(values)})
    spoil(fresh)
    callbacks = [mk.train.Checkpoints(tmp_path), C.EarlyStopping()]
    fresh.fit(recipe, epochs=1, callbacks=callbacks, verbose=0)
    assert bits(fresh) == expected
    assert "The checkpoint has no state of this callback EarlyStopping; it starts afresh." in caplog.messages
