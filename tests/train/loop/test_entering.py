"""A loop is used by one thread of its own process, and no training begins within another."""

from __future__ import annotations

import re
import threading
from typing import Any

import pytest

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.errors import StepError
from mirrorkit.strategy import forked


class Do(keras.callbacks.Callback):  # type: ignore[name-defined]
    """Does something at the end of the first batch of a training or an evaluation."""

    def __init__(self, what: Any) -> None:
        super().__init__()
        self.what, self.found = what, []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if not self.found:
            self.found.append(self.what())

    on_test_batch_end = on_train_batch_end


def refusal(call: Any) -> str:
    with pytest.raises(StepError) as error:
        call()
    return str(error.value)


@pytest.mark.parametrize("what", ["fit", "restore"])
def test_a_fit_does_not_move_another_one_of_the_same_loop(what: str, line: Any, recipe: Any, tmp_path: Any) -> None:
    line.fit(recipe, callbacks=[mk.train.Checkpoints(tmp_path)], verbose=0)
    calls = {"fit": lambda: line.fit(recipe, verbose=0), "restore": lambda: line.restore(tmp_path)}
    begun = Do(lambda: (line.position, refusal(calls[what])))
    report = line.fit(recipe, epochs=2, callbacks=[begun], verbose=0)
    ((position, text),) = begun.found
    assert text.startswith(f"Loop.{what} was called while Loop.fit of the same loop runs")
    assert line.position is position
    assert len(report.epochs) == 2
    calls[what]()  # afterwards it may
    line.fit(recipe, epochs=2, verbose=0)


def test_a_fit_within_an_evaluation_is_refused(line: Any, recipe: Any) -> None:
    begun = Do(lambda: refusal(lambda: line.fit(recipe, verbose=0)))
    line.evaluate(recipe, callbacks=[begun])
    assert "Loop.fit was called while Loop.evaluate" in begun.found[0]


def test_callbacks_may_evaluate_and_predict(line: Any, recipe: Any) -> None:
    begun = Do(lambda: (line.evaluate(recipe), line.predict(recipe).shape))
    report = line.fit(recipe, epochs=2, callbacks=[begun], verbose=0)
    ((logs, shape),) = begun.found
    assert logs["loss"] > 0
    assert shape == (60, 1)
    assert len(report.epochs) == 2


@pytest.mark.parametrize("what", ["fit", "predict"])
def test_another_thread_is_refused_while_one_trains(what: str, line: Any, recipe: Any) -> None:
    found: list[str] = []

    def elsewhere() -> None:
        options = {"verbose": 0} if what == "fit" else {}
        call = threading.Thread(
            target=lambda: found.append(refusal(lambda: getattr(line, what)(recipe, **options))), name="server"
        )
        call.start()
        call.join()

    line.fit(recipe, callbacks=[Do(elsewhere)], verbose=0)
    assert found[0].startswith(f"Loop.{what} was called in the thread 'server' while Loop.fit")
    late = threading.Thread(target=lambda: found.append(str(line.predict(recipe).shape)))
    late.start()  # one after the other they may
    late.join()
    assert found[1] == "(60, 1)"


def test_a_forked_child_is_refused(line: Any, recipe: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forked, "_user", forked._user + 1)
    for call in (
        lambda: line.fit(recipe, verbose=0),
        lambda: line.evaluate(recipe),
        lambda: line.predict(recipe),
        lambda: mk.train.Loop(line.strategy, line.step),
        lambda: mk.strategy.create("one_device", devices="cpu:1"),
    ):
        assert re.search(r"forked from process.*spawn", refusal(call))
