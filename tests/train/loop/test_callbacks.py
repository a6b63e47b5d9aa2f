"""Keras's own callbacks in Loop: what they print, write, stop and change."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from installed_versions import KERAS
from training_helpers import as_new, line_net

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.train.loop.callbacks import verbosity

L = keras.layers


def _net() -> Any:
    return keras.Sequential([keras.Input((4,)), L.Dense(3, activation="tanh"), L.BatchNormalization(), L.Dense(1)])


@pytest.fixture(scope="module")
def made(make_loop: Any) -> mk.train.Loop:
    """One small net on two replicas, compiled once for all tests here."""
    momentum = lambda: keras.optimizers.SGD(0.05, momentum=0.5)  # noqa: E731
    return make_loop(("mirrored", 2), _net, momentum, metrics=["mae"], steps_per_call=2)


@pytest.fixture
def loop(made: Any) -> mk.train.Loop:
    return as_new(made)


@pytest.fixture
def data(numbers: Any) -> mk.data.Recipe:
    """Five batches of 12."""
    return mk.data.batches(mk.data.arrays(*numbers), global_batch_size=12, shuffle=True)


@pytest.mark.slow
def test_verbose_1_draws_a_bar_2_prints_a_line_per_epoch_and_0_nothing(loop: Any, data: Any, capsys: Any) -> None:
    loop.fit(data, epochs=2, verbose=0)
    assert capsys.readouterr().out == ""
    for verbose, step in ((1, "2/5"), (2, "5/5")):  # the bar once per call of two steps
        report = loop.fit(data, epochs=2, validation_data=data, verbose=verbose)
        text = capsys.readouterr().out
        assert "Epoch 2/2" in text
        assert step in text
        for name, values in report.history.items():
            is_mean = verbose == 1 and KERAS < (3, 15)  # before, Keras's bar showed a mean over its updates
            assert f"{name}: {'' if is_mean else f'{values[-1]:.4f}'}" in text


@pytest.mark.parametrize(("where", "expected"), [("terminal", 1), ("notebook", 1), ("file", 2)])
def test_verbose_auto_draws_a_bar_where_someone_looks(
    where: str, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: where == "terminal", raising=False)
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    if where == "notebook":
        monkeypatch.setitem(sys.modules, "ipykernel", sys)
    assert verbosity("auto") == expected


def test_a_callback_finds_out_which_way_a_metric_is_better(loop: Any, data: Any) -> None:
    """Keras looks for it in the model's own metrics, which a Loop does not fill."""
    mode = "auto" if KERAS >= (3, 11) else "min"  # before, by the metric's name
    stopping = keras.callbacks.EarlyStopping("val_mae", patience=9, mode=mode)
    history = loop.fit(data, epochs=3, validation_data=data, callbacks=[stopping], verbose=0).history
    assert stopping.best == pytest.approx(min(history["val_mae"]))


def test_a_callback_can_stop_within_an_epoch(loop: Any, data: Any) -> None:
    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.model.stop_training = True

    report = loop.fit(data, epochs=3, callbacks=[Stop()], verbose=0)
    assert [(epoch.steps, epoch.examples) for epoch in report.epochs] == [(2, 24)]


def test_swap_ema_weights_without_averages_is_refused_by_keras(make_loop: Any, data: Any) -> None:
    loop = make_loop(("mirrored", 2), line_net, ema=0.9)
    with pytest.raises(ValueError, match="use_ema=True"):
        loop.evaluate(data, callbacks=[keras.callbacks.SwapEMAWeights()])
    with pytest.raises(ValueError, match="use_ema=True"):
        loop.fit(data, validation_data=data, callbacks=[keras.callbacks.SwapEMAWeights()])


def test_stopped_as_an_epoch_begins(loop: Any, data: Any) -> None:
    """As in Keras, one more update is made, however many steps a call has."""

    class Stops(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.model.stop_training = epoch == 1

    loop.fit(data, epochs=4, callbacks=[Stops()], verbose=0)
    assert int(loop.step.optimizer.iterations.numpy()) == 5 + 1


def test_a_callback_that_lets_keras_trace_again_is_refused(loop: mk.train.Loop, data: mk.data.Recipe) -> None:
    callback = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: loop.step.model.make_train_function(force=True)
    )
    with pytest.raises(mk.errors.StepError, match=r"called make_train_function.*keras\.Variable"):
        loop.fit(data, callbacks=[callback], verbose=0)
    loop.step.model.make_train_function(force=True)  # afterwards it is Keras's again
