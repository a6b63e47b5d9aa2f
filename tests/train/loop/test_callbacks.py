"""Keras's own callbacks in Loop: what they print, write, stop and change."""

from __future__ import annotations

import csv
import re
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from installed_versions import KERAS
from training_helpers import largest_difference, line_net, plain_dataset

import mirrorkit as mk
from mirrorkit._keras import keras

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


class WeightsPerEpoch(keras.callbacks.Callback):
    """Remembers the first layer's kernel at the end of every epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels: list[np.ndarray] = []

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.kernels.append(self.model.layers[0].kernel.numpy())


def test_the_progress_bar_prints_steps_and_logs(loop: Any, data: Any, capsys: Any) -> None:
    report = loop.fit(data, epochs=2, validation_data=data, verbose=1)
    text = capsys.readouterr().out
    assert "Epoch 1/2" in text
    assert "Epoch 2/2" in text
    assert "2/5" in text  # once per call of two steps
    assert "5/5" in text
    for name, values in report.history.items():
        shown = f"{values[-1]:.4f}" if KERAS >= (3, 15) else ""  # before, Keras's bar showed a mean over its updates
        assert f"{name}: {shown}" in text


def test_verbose_2_prints_a_line_per_epoch_and_0_nothing(loop: Any, data: Any, capsys: Any) -> None:
    loop.fit(data, epochs=2, verbose=0)
    assert capsys.readouterr().out == ""
    report = loop.fit(data, epochs=2, verbose=2)
    lines = capsys.readouterr().out.strip().splitlines()
    assert [line for line in lines if line.startswith("Epoch")] == ["Epoch 1/2", "Epoch 2/2"]
    assert f"loss: {report.history['loss'][1]:.4f}" in lines[-1]


@pytest.mark.parametrize(("where", "bar"), [("terminal", True), ("notebook", True), ("file", False)])
def test_verbose_auto_draws_a_bar_where_someone_looks(
    where: str, bar: bool, loop: Any, data: Any, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: where == "terminal", raising=False)
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    if where == "notebook":
        monkeypatch.setitem(sys.modules, "ipykernel", sys)
    loop.fit(data, epochs=2)
    text = capsys.readouterr().out
    assert ("\b" in text or "\r" in text) == bar
    assert "Epoch 2/2" in text
    assert re.search(r"loss: \d", text)


def test_early_stopping_stops_and_restores_the_best_weights(
    loop: Any, data: Any, assert_replicas_equal: Any, copies: Any
) -> None:
    seen = WeightsPerEpoch()
    # the loss falls, so with mode="max" the first epoch is the best
    stopping = keras.callbacks.EarlyStopping("val_loss", mode="max", patience=1, restore_best_weights=True)
    report = loop.fit(data, epochs=6, validation_data=data, callbacks=[seen, stopping], verbose=0)
    assert len(report.history["loss"]) == len(report.epochs) == 2
    assert not np.array_equal(seen.kernels[0], seen.kernels[1])
    for copy in copies(loop)[0]:
        np.testing.assert_array_equal(copy, seen.kernels[0])
    assert_replicas_equal(loop)
    assert len(loop.fit(data, epochs=2, verbose=0).epochs) == 2  # the next fit starts afresh


def test_a_callback_finds_out_which_way_a_metric_is_better(make_loop: Any, data: Any) -> None:
    """Keras looks for it in the model's own metrics, which a Loop does not fill."""
    loop = make_loop(("mirrored", 2), line_net, metrics=["mae", keras.metrics.R2Score(name="top")])
    modes = {"val_mae": "min", "top": "max"}
    if KERAS >= (3, 11):
        modes = dict.fromkeys(modes, "auto")  # before, by the metric's name
    callbacks = [keras.callbacks.EarlyStopping(monitor, patience=9, mode=mode) for monitor, mode in modes.items()]
    history = loop.fit(data, epochs=3, validation_data=data, callbacks=callbacks, verbose=0).history
    for callback, best in zip(callbacks, (min, max), strict=True):
        assert callback.best == pytest.approx(best(history[callback.monitor]))


def test_a_callback_can_stop_within_an_epoch(loop: Any, data: Any) -> None:
    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.model.stop_training = True

    report = loop.fit(data, epochs=3, callbacks=[Stop()], verbose=0)
    assert [(epoch.steps, epoch.examples) for epoch in report.epochs] == [(2, 24)]


def test_csv_logger_writes_the_history(loop: Any, data: Any, tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    report = loop.fit(data, epochs=3, validation_data=data, callbacks=[keras.callbacks.CSVLogger(str(path))], verbose=0)
    rows = list(csv.DictReader(path.open()))
    assert [int(row["epoch"]) for row in rows] == [0, 1, 2]
    for name, values in report.history.items():
        np.testing.assert_allclose([float(row[name]) for row in rows], values)


def test_tensorboard_gets_the_epochs_of_training_and_validation(loop: Any, data: Any, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the extra 'tensorboard' is not installed")
    from tensorflow.core.util import event_pb2

    report = loop.fit(
        data,
        epochs=2,
        validation_data=data,
        callbacks=[keras.callbacks.TensorBoard(tmp_path, histogram_freq=1)],
        verbose=0,
    )
    for folder, prefix in (("train", ""), ("validation", "val_")):
        (file,) = (tmp_path / folder).glob("events.out.tfevents.*")
        found: dict[str, dict[int, float]] = {}
        for record in tf.data.TFRecordDataset(str(file)):
            event = event_pb2.Event.FromString(record.numpy())
            for value in event.summary.value:
                if value.tag.startswith(("epoch_", "evaluation_")):
                    found.setdefault(value.tag, {})[event.step] = float(tf.make_ndarray(value.tensor))
        for name in ("loss", "mae"):
            written = [found[f"epoch_{name}"][epoch] for epoch in range(2)]
            np.testing.assert_allclose(written, report.history[prefix + name], rtol=1e-6)


def test_reduce_lr_on_plateau_slows_the_training_itself(loop: Any, data: Any) -> None:
    seen = WeightsPerEpoch()
    plateau = keras.callbacks.ReduceLROnPlateau("loss", factor=0.0, patience=2, min_delta=1e9)
    history = loop.fit(data, epochs=5, callbacks=[seen, plateau], verbose=0).history
    np.testing.assert_allclose(history["learning_rate"], [0.05, 0.05, 0.05, 0.0, 0.0])
    assert not np.array_equal(seen.kernels[1], seen.kernels[2])
    moved = [np.abs(b - a).max() for a, b in zip(seen.kernels[2:], seen.kernels[3:], strict=False)]
    assert 0 < moved[1] < 0.1 * moved[0]  # only the momentum is left, which halves at every step
    assert float(loop.step.optimizer.learning_rate.numpy()) == 0.0


def test_a_checkpoint_file_needs_no_mirrorkit(loop: Any, data: Any, numbers: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "epoch{epoch}.keras")
    saver = keras.callbacks.ModelCheckpoint(path, monitor="val_loss", save_best_only=False)
    weights_only = keras.callbacks.ModelCheckpoint(str(tmp_path / "best.weights.h5"), save_weights_only=True)
    loop.fit(data, epochs=2, validation_data=data, callbacks=[saver, weights_only], verbose=0)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["best.weights.h5", "epoch1.keras", "epoch2.keras"]
    with zipfile.ZipFile(tmp_path / "epoch2.keras") as archive:
        assert b"mirrorkit" not in b"".join(archive.read(name) for name in archive.namelist() if "json" in name)
    x = numbers[0]
    expected = loop.predict(plain_dataset(x, batch=60))
    loaded = keras.models.load_model(tmp_path / "epoch2.keras")
    np.testing.assert_allclose(loaded.predict(x, verbose=0), expected, atol=1e-6)
    assert int(loaded.optimizer.iterations.numpy()) == 10
    assert loaded.evaluate(*numbers, verbose=0, return_dict=True)["mae"] == pytest.approx(
        loop.evaluate(data)["mae"], rel=1e-5
    )
    fresh = _net()
    fresh.load_weights(tmp_path / "best.weights.h5")
    np.testing.assert_allclose(fresh.predict(x, verbose=0), expected, atol=1e-6)


def test_a_saved_model_goes_on_where_it_stopped(
    loop: Any, data: Any, tmp_path: Path, assert_replicas_equal: Any
) -> None:
    """Saved after two epochs, loaded in the scope, trained on from its compiled state: as if never stopped."""
    loop.fit(data, epochs=2, verbose=0)
    loop.step.model.save(tmp_path / "half.keras")
    loop.fit(data, epochs=3, initial_epoch=2, verbose=0)
    with loop.strategy.scope():
        model = keras.models.load_model(tmp_path / "half.keras")
    resumed = mk.train.Loop(loop.strategy, mk.train.Step.from_compiled(model))
    history = resumed.fit(data, epochs=3, initial_epoch=2, verbose=0).history
    assert set(history) == {"loss", "mae"}
    assert_replicas_equal(resumed)
    assert len(resumed.step.variables) == len(loop.step.variables)
    for new, old in zip(resumed.step.variables, loop.step.variables, strict=True):
        np.testing.assert_array_equal(new.value.numpy(), old.value.numpy(), err_msg=old.path)
    assert int(model.optimizer.iterations.numpy()) == 15


def test_swap_ema_weights_in_fit_is_keras_own(strategy_of: Any, numbers: Any, tmp_path: Path) -> None:
    """Validation sees the averages, and so does what saves behind it; 2 replicas against Keras on one device."""
    data = mk.data.batches(mk.data.arrays(*numbers), global_batch_size=12)
    x, y = next(iter(data.dataset().unbatch().batch(10_000)))
    found = []
    for kind, strategy in (("keras", strategy_of("one_device", 1)), ("loop", strategy_of("mirrored", 2))):
        keras.utils.set_random_seed(0)
        with strategy.scope():
            model = keras.Sequential([keras.Input((4,)), L.Dense(3, activation="tanh"), L.Dense(1)])
            model.compile(keras.optimizers.SGD(0.3, use_ema=True, ema_momentum=0.8), "mse", jit_compile=False)
        saved = tmp_path / f"{kind}.keras"
        callbacks = [keras.callbacks.SwapEMAWeights(swap_on_epoch=True), keras.callbacks.ModelCheckpoint(saved)]
        if kind == "keras":
            report = model.fit(
                x, y, batch_size=12, epochs=2, shuffle=False, validation_data=(x, y), callbacks=callbacks, verbose=0
            )
        else:
            loop = mk.train.Loop(strategy, mk.train.Step.from_compiled(model))
            report = loop.fit(data, epochs=2, validation_data=data, callbacks=callbacks, verbose=0)
        again = keras.models.load_model(saved)
        found.append([report.history["val_loss"], *model.get_weights(), *again.get_weights()])
    assert largest_difference(*found) < 1e-5


def test_swap_ema_weights_without_averages_is_refused(make_loop: Any, data: Any) -> None:
    loop = make_loop(("mirrored", 2), line_net, ema=0.9)
    for call in (loop.fit, loop.evaluate):
        with pytest.raises(mk.errors.StepError, match="validation_averaged=True"):
            call(data, callbacks=[keras.callbacks.SwapEMAWeights()])


def test_stopped_as_an_epoch_begins(loop: Any, data: Any) -> None:
    """As in Keras, one more update is made, however many steps a call has."""

    class Stops(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.model.stop_training = epoch == 1

    loop.fit(data, epochs=4, callbacks=[Stops()], verbose=0)
    assert int(loop.step.optimizer.iterations.numpy()) == 5 + 1
