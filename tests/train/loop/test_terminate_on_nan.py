"""Keras's TerminateOnNaN in a Loop: the training ends as in Keras's fit, and what was saved before stays the newest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loop_helpers import calls_of
from training_helpers import keras_twin, line_net, plain_dataset, set_values, values_of

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.train.checkpoints.folder import Folder

C = keras.callbacks
TEXT = "Batch 3: Invalid loss, terminating training"


class Hooks(C.Callback):  # type: ignore[name-defined]
    """Remembers which hooks came, and the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, int]] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seen.append(("batch", batch))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.seen.append(("epoch", epoch))

    def on_train_end(self, logs: Any = None) -> None:
        self.seen.append(("end", 0))


def _bad(numbers: Any, *, batch: int) -> Any:
    """Six batches of 10; one example of the given one, on the last replica, has a bad target."""
    y = numbers[1].copy()
    y[10 * batch + 9] = np.nan
    return plain_dataset(numbers[0], y, batch=10)


@pytest.fixture
def loop(line: Any) -> mk.train.Loop:
    """`line`, one step per call."""
    return calls_of(line, 1)


def test_it_ends_as_in_keras(loop: Any, numbers: Any, capsys: Any) -> None:
    data = _bad(numbers, batch=3)
    model = keras_twin(line_net, loop)
    model.compile(keras.optimizers.SGD(0.05, momentum=0.5), "mse", metrics=["mae"])
    hooks = [Hooks(), Hooks()]
    good = plain_dataset(*numbers, batch=10)
    expected = model.fit(
        data, epochs=3, verbose=0, validation_data=good, callbacks=[hooks[0], C.TerminateOnNaN()]
    ).history
    assert TEXT in capsys.readouterr().out
    report = loop.fit(data, epochs=3, verbose=0, validation_data=good, callbacks=[hooks[1], C.TerminateOnNaN()])
    assert capsys.readouterr().out.strip() == TEXT
    assert report.history.keys() == expected.keys()
    np.testing.assert_equal(report.history["loss"], [np.nan])
    np.testing.assert_equal(expected["loss"], [np.nan])
    np.testing.assert_equal(report.history["val_loss"], expected["val_loss"])
    assert hooks[1].seen == hooks[0].seen == [*(("batch", i) for i in range(4)), ("epoch", 0), ("end", 0)]
    assert [epoch.steps for epoch in report.epochs] == [4]


def test_within_a_call_of_many_steps_the_bad_batch_is_named(line: Any, numbers: Any, capsys: Any) -> None:
    loop, hooks = calls_of(line, 6), Hooks()
    loop.fit(_bad(numbers, batch=3), epochs=3, verbose=0, callbacks=[C.TerminateOnNaN(), hooks])
    assert capsys.readouterr().out.strip() == TEXT
    assert hooks.seen == [("batch", 3), ("epoch", 0), ("end", 0)]


def test_checkpoints_of_before_stay_the_newest(loop: Any, numbers: Any, tmp_path: Path) -> None:
    good, bad = plain_dataset(*numbers, batch=10), _bad(numbers, batch=3)

    def fit(data: Any, epochs: int) -> Any:
        callbacks = [mk.train.Checkpoints(tmp_path, every=1), C.TerminateOnNaN()]
        return loop.fit(data, epochs=epochs, verbose=0, callbacks=callbacks)

    fit(good, 1)
    assert not np.all(np.isfinite(np.array(fit(bad, 4).history["loss"])))
    assert not np.all(np.isfinite(values_of(loop)[0]))
    newest = Folder(tmp_path).find()[0]
    assert newest.startswith("step-0000000009")
    set_values(loop, [np.full_like(value, 7) for value in values_of(loop)])
    report = fit(good, 3)  # goes on, with good data
    assert np.all(np.isfinite(report.history["loss"]))
    assert len(report.history["loss"]) == 3
    assert loop.position.epoch == 3
    assert np.all(np.isfinite(values_of(loop)[0]))
