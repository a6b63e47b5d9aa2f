"""Keras's own callbacks in Loop: what they print, write, stop and change."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from installed_versions import KERAS
from training_helpers import largest_difference, line_net

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.train.loop.callbacks import verbosity

L = keras.layers


def _net() -> Any:
    return keras.Sequential([keras.Input((4,)), L.Dense(3, activation="tanh"), L.BatchNormalization(), L.Dense(1)])


@pytest.fixture(scope="module")
def made(strategy_of: Any) -> tuple[mk.train.Loop, list[np.ndarray]]:
    """One small net on two replicas and its first values, compiled once for all tests here."""
    strategy = strategy_of("mirrored", 2)
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model, optimizer = _net(), keras.optimizers.SGD(0.05, momentum=0.5)
    step = mk.train.Step(model, optimizer, loss="mse", metrics=["mae"])
    loop = mk.train.Loop(strategy, step, steps_per_call=2)
    return loop, [variable.value.numpy() for variable in step.variables]


@pytest.fixture
def loop(made: Any) -> mk.train.Loop:
    loop, first = made
    for variable, value in zip(loop.step.variables, first, strict=True):
        variable.assign(value)
    return loop


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


@pytest.mark.slow
def test_swap_ema_weights_in_fit_is_keras_own(strategy_of: Any, numbers: Any) -> None:
    """Validation sees the averages, and so do the weights at the end; 2 replicas against Keras on one device."""
    data = mk.data.batches(mk.data.arrays(*numbers), global_batch_size=12)
    found: list[Any] = []
    for strategy in (strategy_of("one_device", 1), strategy_of("mirrored", 2)):
        keras.utils.set_random_seed(0)
        with strategy.scope():
            model = keras.Sequential([keras.Input((4,)), L.Dense(3, activation="tanh"), L.Dense(1)])
            model.compile(keras.optimizers.SGD(0.3, use_ema=True, ema_momentum=0.8), "mse", jit_compile=False)
        options = {"epochs": 2, "callbacks": [keras.callbacks.SwapEMAWeights(swap_on_epoch=True)], "verbose": 0}
        if not found:
            batches = tf.data.Dataset.from_tensor_slices(numbers).batch(12)
            report = model.fit(batches, validation_data=batches, **options)
        else:
            loop = mk.train.Loop(strategy, mk.train.Step.from_compiled(model))
            report = loop.fit(data, validation_data=data, **options)
        found.append([report.history["val_loss"], *model.get_weights()])
    assert largest_difference(*found) < 1e-5


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
