"""What callbacks remember: which attributes that is, what a checkpoint says of it, and who gets it back."""

from __future__ import annotations

import collections
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_helpers import bits, names, saved_at, spoil, write_as_other_version

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.errors import CheckpointError
from mirrorkit.train.checkpoints import file as checkpoint_file
from mirrorkit.train.checkpoints.callback_states import CallbackStates, read_states

C = keras.callbacks
pytestmark = pytest.mark.filterwarnings("ignore:A global batch of")


class Counts(C.Callback):  # type: ignore[name-defined, misc]
    """Remembers all kinds of things, as users write it."""

    def __init__(self, patience: int = 3) -> None:
        super().__init__()
        self.patience = patience
        self.constant = np.arange(3)
        self.file: Any = None
        self.seen = 0

    def begin(self, folder: Path) -> Counts:
        """What its on_train_begin does."""
        self.file = (folder / "log").open("w")
        self.clock = float(np.random.default_rng().integers(2**40))
        return self


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


def test_what_has_changed_since_the_beginning_is_remembered(tmp_path: Path) -> None:
    one = Counts().begin(tmp_path)
    states = _states(one)
    assert _read(states) == [("Counts", "attributes", {})]
    one.seen, one.last, one.function, one.constant[1] = 5, [1.0, (2,)], print, 7
    one.file.close()
    one.file = None
    ((_, _, found),) = _read(states)
    assert found.keys() == {"seen", "last", "constant"}
    other = Counts(patience=9).begin(tmp_path)
    clock, file = other.clock, other.file
    _states(other).restore([("Counts", "attributes", found)])
    assert (other.seen, other.last, other.constant.tolist()) == (5, [1.0, (2,)], [0, 7, 2])
    assert (other.patience, other.clock, other.file) == (9, clock, file)  # these are the new run's
    file.close()


def test_what_is_saved_is_a_copy() -> None:
    one = Counts()
    states = _states(one)
    one.constant[0] = 1
    about, (array,) = states.saved()
    one.constant[0] = 2
    assert array.tolist() == [1, 1, 2]
    assert about["arrays"] == [{"path": "Counts", "shape": [3], "dtype": "int64"}]


def test_one_that_has_get_state_is_asked() -> None:
    one, silent = Asked({"a": (1, np.ones(2))}), Asked()
    (_, kind, state), nothing = _read(_states(one, silent))
    assert (kind, nothing) == ("state", ("Asked", "state", None))
    other, other_silent = Asked(), Asked()
    _states(other, other_silent).restore([("Asked", kind, state), nothing])
    assert other.given == [state]
    assert other_silent.given == []  # None: nothing to give back


def test_a_state_is_given_back_once_more_only_where_an_epochs_begin_changed_it() -> None:
    one, other = Asked([1]), Asked([1])
    put_back = _states(one, other).kept()
    other.state = [2]
    put_back()
    assert (one.given, other.given) == ([], [[1]])


def test_a_callback_that_cannot_take_its_state_is_named() -> None:
    class Picky(Asked):
        def set_state(self, state: Any) -> None:
            raise KeyError(0)

    class Fixed(C.Callback):  # type: ignore[name-defined, misc]
        fixed = property(lambda self: 1)

    with pytest.raises(CheckpointError, match=r"callback Picky cannot restore .*: set_state raised KeyError: 0"):
        _states(Picky()).restore([("Picky", "state", 1)])
    with pytest.raises(
        CheckpointError, match=r"callback Fixed cannot restore .*: setting 'fixed' raised AttributeError"
    ):
        _states(Fixed()).restore([("Fixed", "attributes", {"fixed": 2})])


def test_a_state_that_cannot_be_saved_or_given_back_is_refused_at_the_beginning() -> None:
    with pytest.raises(CheckpointError, match=r"get_state of the callback Asked .* holds a builtins.set\. It may hold"):
        _states(Asked({1, 2}))

    class OneWay(C.Callback):  # type: ignore[name-defined, misc]
        def get_state(self) -> int:
            return 1

    with pytest.raises(CheckpointError, match="OneWay has get_state but no set_state"):
        _states(OneWay())


def test_callbacks_are_known_by_name_and_order(caplog: Any) -> None:
    states = [("Counts", "attributes", {"seen": n}) for n in (1, 2)] + [("Gone", "attributes", {"a": 1})]
    one, two, new, asked, silent = Counts(), Counts(), C.EarlyStopping(), Asked(1), mk.train.Checkpoints("a")
    _states(new, one, asked, two, silent).restore([*states, ("Asked", "attributes", {"state": 1})])
    assert (one.seen, two.seen) == (1, 2)
    assert asked.given == []
    assert [record.message for record in caplog.records] == [
        "The checkpoint has no state of this callback EarlyStopping; it starts afresh.",
        "The checkpoint has no state of this callback Asked; it starts afresh.",
        "The checkpoint has the attributes of a callback Gone, which this fit has not; left out.",
    ]


def test_workers_other_than_the_chief_have_no_files_to_write_and_are_silent(caplog: Any) -> None:
    """The chief's writers are in the checkpoint and not in their lists."""
    one = Counts()
    _states(one, tells=False).restore([("Counts", "attributes", {"seen": 1}), ("CSVLogger", "attributes", {"a": 1})])
    assert one.seen == 1
    assert not caplog.records


def test_data_that_is_not_plain_is_named_once(caplog: Any) -> None:
    class Recent(Counts):
        def __init__(self) -> None:
            super().__init__()
            self.recent: collections.deque[float] = collections.deque(maxlen=3)

    states = _states(Recent())
    for _ in range(2):
        assert _read(states) == [("Recent", "attributes", {})]
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "'recent' of the callback Recent holds a collections.deque and is not saved" in caplog.text


def test_a_profiler_that_ran_does_not_run_in_the_next_process(tmp_path: Path) -> None:
    """TensorBoard would try to end it."""
    board = C.TensorBoard(tmp_path, profile_batch=(1, 3))
    states = _states(board)
    board._is_tracing = board._profiler_started = True
    board._global_train_batch = 2
    assert _read(states) == [("TensorBoard", "attributes", {"_global_train_batch": 2})]
    assert {"_is_tracing", "_global_train_batch"} <= vars(C.TensorBoard(tmp_path, profile_batch=(1, 3))).keys()


def test_a_restored_value_replaces_no_method_and_no_object() -> None:
    one = C.LambdaCallback(on_epoch_end=print)
    one.set_model(keras.Sequential())
    model = one.model
    _states(one).restore([("LambdaCallback", "attributes", {"on_epoch_end": 5, "on_train_end": 5, "_model": 5})])
    assert one.on_epoch_end is print
    assert callable(one.on_train_end)
    assert one.model is model


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
    counts = Counts()
    fresh.fit(recipe, epochs=1, callbacks=[mk.train.Checkpoints(tmp_path), counts], verbose=0)
    assert bits(fresh) == expected
    assert "This checkpoint is of an older mirrorkit, which saved no callbacks; they start afresh." in caplog.text
