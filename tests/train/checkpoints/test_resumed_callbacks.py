"""A resumed run makes the decisions of one that was not disturbed: rates, stops, best weights, files."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import watched_run as run
from checkpoint_helpers import bits, spoil
from training_helpers import At, Interrupted, as_new, send_sigterm

import mirrorkit as mk
from mirrorkit._keras import keras

C = keras.callbacks
pytest.importorskip("tensorboard", reason="the extra 'tensorboard' is not installed")


PLACES = [  # every how many steps it saves, and where it is broken off
    (2, At("on_train_batch_end", 3)),
    (2, At("on_train_batch_end", 5)),  # the last of an epoch
    (2, At("on_epoch_begin", 10)),  # the newest checkpoint is from before the end of the epoch
    (1, At("on_test_begin", 15)),
    ("epoch", At("on_epoch_begin", 15)),
    (2, At("on_epoch_end", 20)),
    (2, At("on_train_batch_begin", 23, send_sigterm)),
    (99, At("on_test_batch_begin", 25, send_sigterm)),  # while the averages are in the place of the weights
    ("epoch", At("on_train_batch_end", 33)),
    ("epoch", At("on_train_end", 45)),  # EarlyStopping has decided to stop
]


@pytest.fixture(scope="module")
def whole(strategy_of: Any, tmp_path_factory: Any) -> tuple[mk.train.Loop, Any]:
    """A loop, and what it leaves when nothing disturbs it."""
    loop, folder = as_new(run.make_loop(strategy_of("mirrored", 2))), tmp_path_factory.mktemp("whole")
    callbacks = run.callbacks_in(folder)
    found = run.outcome(loop, folder, run.fit(loop, callbacks), callbacks)
    assert len(found["history"]["loss"]) == 9 < run.EPOCHS  # stopped early
    assert found["remembered"]["stopping"][3] == 6  # the best epoch's weights were put back
    rates = found["history"]["learning_rate"]
    assert min(after / before for before, after in itertools.pairwise(rates)) < 0.7  # and on a plateau
    return loop, found


def _broken_off(whole: Any, folder: Path, places: Any) -> Any:
    """What is left of a run that was broken off at each of the places, and went on as a new one each time."""
    loop = as_new(whole[0])
    for every, strike in places:
        callbacks = run.callbacks_in(folder / "files")
        with pytest.raises((Interrupted, SystemExit)):
            run.fit(loop, [*callbacks, strike], folder / "checkpoints", every)
        for writer in callbacks[7]._writers.values():
            writer.flush()  # as where a process ends
        spoil(loop)
    callbacks = run.callbacks_in(folder / "files")
    report = run.fit(loop, callbacks, folder / "checkpoints")
    return run.outcome(loop, folder / "files", report, callbacks)


@pytest.mark.slow
def test_a_run_broken_off_at_ten_places_decides_as_a_whole_one(whole: Any, tmp_path: Path) -> None:
    found, expected = _broken_off(whole, tmp_path, PLACES), whole[-1]
    assert found.keys() == expected.keys()
    for what in expected:
        assert found[what] == expected[what], what


def test_a_decision_to_stop_is_kept(fresh: Any, recipe: Any, tmp_path: Path) -> None:
    """It was saved, and the process ended before the training did."""
    saver = mk.train.Checkpoints(tmp_path)
    stop = At("on_train_batch_end", 8, lambda: setattr(fresh.step.model, "stop_training", True))
    with pytest.raises(Interrupted):
        fresh.fit(recipe, epochs=4, callbacks=[saver, stop, At("on_train_end", 8)], verbose=0)
    expected, done = bits(fresh), fresh.position.steps
    spoil(fresh)
    report = fresh.fit(recipe, epochs=4, callbacks=[saver], verbose=0)
    assert bits(fresh) == expected
    assert fresh.position.steps == done < 15
    assert len(report.history["loss"]) == 2
    more = fresh.fit(recipe, epochs=6, callbacks=[saver], verbose=0)  # who asks for more than the fit that ended
    assert len(more.history["loss"]) == 6
