"""SIGTERM and Ctrl-C: the call ends, the run is saved, the process leaves with the right code, the next goes on."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_helpers import bits, names, saved_at, spoil
from training_helpers import At, Interrupted, as_new, line_net, set_values, values_of

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.train.loop import callbacks as loop_callbacks

HANDLERS = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}


@pytest.fixture(autouse=True)
def _handlers_are_given_back() -> Any:
    before = {number: signal.getsignal(number) for number in HANDLERS}
    yield
    assert {number: signal.getsignal(number) for number in HANDLERS} == before


def send(number: int, hook: str, *, at: int) -> At:
    """Send this process a signal within the hook of that name, when the run has done so many steps."""
    return At(hook, at, lambda: os.kill(os.getpid(), number))


def test_a_signal_saves_and_leaves_and_the_next_start_goes_on(
    fresh: Any, recipe: Any, tmp_path: Path, capfd: Any
) -> None:
    options = {"epochs": 2, "validation_data": recipe, "verbose": 0}
    history = fresh.fit(recipe, **options).history
    expected = bits(fresh)
    for number, hook, at, saved in (
        (signal.SIGTERM, "on_train_batch_begin", 3, 5),  # the call of steps 3 and 4 still ends
        (signal.SIGTERM, "on_test_batch_begin", 10, 10),  # in the validation of the second epoch
        (signal.SIGTERM, "on_epoch_end", 5, 5),
        (signal.SIGINT, "on_train_batch_end", 8, 9),
    ):
        folder = tmp_path / f"{number} {hook}"
        saver = mk.train.Checkpoints(folder, every=99)
        as_new(fresh)
        with pytest.raises(KeyboardInterrupt if number == signal.SIGINT else SystemExit) as left:
            fresh.fit(recipe, callbacks=[saver, send(number, hook, at=at)], **options)
        assert number == signal.SIGINT or left.value.code == 143
        assert names(folder) == saved_at(saved)
        assert f"{signal.Signals(number).name}: saving a checkpoint after this call" in capfd.readouterr().err
        spoil(fresh)
        report = fresh.fit(recipe, callbacks=[saver], **options)
        assert report.history == history, folder
        assert bits(fresh) == expected, folder


def test_a_signal_in_the_last_call_is_not_lost_and_the_exit_code_is_the_schedulers_choice(
    fresh: Any, recipe: Any, tmp_path: Path
) -> None:
    saver = mk.train.Checkpoints(tmp_path, exit_code=75)
    for hook in ("on_epoch_end", "on_train_end"):
        with pytest.raises(SystemExit) as left:
            fresh.fit(recipe, callbacks=[saver, send(signal.SIGTERM, hook, at=1)], verbose=0)
        assert left.value.code == 75
    assert names(tmp_path) == saved_at(5)


def test_each_of_two_savers_saves_at_a_signal(fresh: Any, recipe: Any, tmp_path: Path) -> None:
    """The last one restores, and must not hold an older checkpoint."""
    savers = [mk.train.Checkpoints(tmp_path / "often", every=1), mk.train.Checkpoints(tmp_path / "epochs")]
    with pytest.raises(SystemExit):
        fresh.fit(recipe, callbacks=[*savers, send(signal.SIGTERM, "on_train_batch_end", at=2)], verbose=0)
    assert names(tmp_path / "often")[-1] == names(tmp_path / "epochs")[-1]


def test_a_second_ctrl_c_interrupts_at_once(fresh: Any, recipe: Any, tmp_path: Path) -> None:
    twice = [send(signal.SIGINT, "on_train_batch_begin", at=0) for _ in range(2)]
    with pytest.raises(KeyboardInterrupt):
        fresh.fit(recipe, callbacks=[mk.train.Checkpoints(tmp_path), *twice], verbose=0)
    assert names(tmp_path) == []


def test_handlers_are_given_back_after_an_error(fresh: Any, recipe: Any, tmp_path: Path) -> None:
    class Fail(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            assert signal.getsignal(signal.SIGTERM) != HANDLERS[signal.SIGTERM]
            raise Interrupted

    for savers in (1, 2):
        callbacks = [mk.train.Checkpoints(tmp_path / str(i)) for i in range(savers)]
        with pytest.raises(Interrupted):
            fresh.fit(recipe, callbacks=[*callbacks, Fail()], verbose=0)
        assert signal.getsignal(signal.SIGTERM) == HANDLERS[signal.SIGTERM]


def test_a_signal_that_is_ignored_stays_ignored(fresh: Any, recipe: Any, tmp_path: Path) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        stop = send(signal.SIGINT, "on_train_batch_begin", at=0)
        fresh.fit(recipe, verbose=0, callbacks=[mk.train.Checkpoints(tmp_path), stop])
    finally:
        signal.signal(signal.SIGINT, before)
    assert names(tmp_path) == saved_at(5)


def test_outside_of_the_main_thread_it_saves_and_leaves_signals_alone(fresh: Any, recipe: Any, tmp_path: Path) -> None:
    thread = threading.Thread(target=lambda: fresh.fit(recipe, callbacks=[mk.train.Checkpoints(tmp_path)], verbose=0))
    thread.start()
    thread.join()
    assert names(tmp_path) == saved_at(5)


def test_workers_agree_to_leave_in_the_message_in_which_they_agree_to_stop(
    fresh: Any, recipe: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None leaves on its own signal, all leave on another's; one message for each call."""
    sent: list[int] = []

    def arrays_of_all_workers(strategy: Any, value: np.ndarray) -> np.ndarray:
        sent.append(int(value[0]))
        return np.array([[signal.SIGTERM if len(sent) == 2 else 0, *[0] * (len(value) - 1)]])

    monkeypatch.setattr(loop_callbacks, "arrays_of_all_workers", arrays_of_all_workers)
    stop = send(signal.SIGTERM, "on_train_batch_begin", at=0)
    with pytest.raises(SystemExit):
        fresh.fit(recipe, epochs=2, verbose=0, callbacks=[mk.train.Checkpoints(tmp_path, every=99), stop])
    assert sent == [signal.SIGTERM] * 2
    assert names(tmp_path) == saved_at(4)


def test_a_signal_in_a_validation_on_averages_saves_the_weights(make_loop: Any, numbers: Any, tmp_path: Path) -> None:
    """Weights and averages have changed places there; what goes on is as if nothing had happened."""
    data = mk.data.batches(mk.data.arrays(*numbers), global_batch_size=20)
    options = {"epochs": 2, "validation_data": data, "validation_averaged": True, "verbose": 0}
    loop = make_loop(("mirrored", 2), line_net, lambda: keras.optimizers.SGD(0.01), steps_per_call=2, ema=0.9)
    start = values_of(loop)
    loop.fit(data, **options)
    expected = bits(loop)
    set_values(loop, start)
    loop.position = mk.train.Position()
    ended: list[int] = []
    ends = keras.callbacks.Callback()
    ends.on_test_batch_end = lambda batch, logs=None: ended.append(batch)
    stop = send(signal.SIGTERM, "on_test_batch_begin", at=3)
    with pytest.raises(SystemExit):
        loop.fit(data, callbacks=[stop, mk.train.Checkpoints(tmp_path), ends], **options)
    assert len(ended) == 1, "the validation is left after its present call"
    assert names(tmp_path) == saved_at(3)
    spoil(loop)
    loop.fit(data, callbacks=[mk.train.Checkpoints(tmp_path)], **options)
    assert bits(loop) == expected
