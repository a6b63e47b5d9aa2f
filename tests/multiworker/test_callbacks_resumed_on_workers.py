"""Callbacks of all workers go on from what the chief saved, and decide as where nothing was interrupted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import mirrorkit as mk

pytestmark = pytest.mark.slow


class Interrupted(Exception):
    """Breaks a fit off."""


class Counting(keras.callbacks.Callback):
    """Counts epochs and batches, and remembers validations within epochs."""

    def __init__(self) -> None:
        super().__init__()
        self.epochs = self.batches = 0
        self.validated: list[float] = []

    def get_state(self) -> Any:
        return self.epochs, self.batches, self.validated

    def set_state(self, state: Any) -> None:
        self.epochs, self.batches, self.validated = state

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epochs += 1

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.batches += 1
        self.validated += [logs["val_loss"]] if "val_loss" in logs else []


class Break(keras.callbacks.Callback):
    """Breaks a fit off after some of its batches."""

    def __init__(self, left: int) -> None:
        super().__init__()
        self.left = left

    def get_state(self) -> None:
        """Nothing to save."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.left -= 1
        if self.left == 0:
            raise Interrupted


def run(strategy: tf.distribute.Strategy, folder: Path, name: str, at: int = 0) -> Any:
    """Train until EarlyStopping stops; what each worker's callbacks remember, the history, and the weights."""
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD(0.2)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 4)).astype("float32")
    split = mk.data.arrays(x, x[:, :1] + rng.normal(size=(40, 1)).astype("float32"))
    data = mk.data.batches(split, global_batch_size=8, shuffle=True)
    stopping = keras.callbacks.EarlyStopping("loss", patience=2, min_delta=0.01, restore_best_weights=True)
    plateau = keras.callbacks.ReduceLROnPlateau("loss", patience=1, min_delta=0.02)
    best = keras.callbacks.ModelCheckpoint(
        folder / f"{name}.weights.h5", "loss", mode="min", save_best_only=True, save_weights_only=True
    )
    counting = Counting()
    saver = mk.train.Checkpoints(folder / name, every=2)
    loop = mk.train.Loop(strategy, mk.train.Step(model, optimizer, loss="mse"), steps_per_call=1)
    options: dict[str, Any] = {"validation_data": data, "validate_every": 2, "epochs": 20, "verbose": 0}
    report = loop.fit(data, callbacks=[saver, stopping, plateau, best, counting, Break(at)], **options)
    remembered = [stopping.wait, stopping.best, stopping.stopped_epoch, plateau.wait, plateau.best]
    remembered += [counting.epochs, counting.batches, counting.validated]
    return remembered, report.history, [value.tolist() for value in model.get_weights()]


class Stops(keras.callbacks.Callback):
    """Stops the training as an epoch begins."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.model.stop_training = True


def stopped(strategy: tf.distribute.Strategy, folder: Path) -> int:
    """How many epochs a run has trained in that goes on within one, where the second worker alone wants to stop."""
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    loop = mk.train.Loop(strategy, mk.train.Step.from_compiled(model), steps_per_call=1)
    x = np.random.default_rng(0).normal(size=(40, 4)).astype("float32")
    options: dict[str, Any] = {"y": x[:, :1], "batch_size": 8, "seed": 1, "epochs": 2, "verbose": 0}
    with pytest.raises(Interrupted):
        loop.fit(x, callbacks=[mk.train.Checkpoints(folder / "stopped", every=1), Break(3)], **options)
    stops = [Stops()][: not mk.strategy.is_chief(strategy)]
    return len(loop.fit(x, callbacks=[mk.train.Checkpoints(folder / "stopped"), *stops], **options).epochs)


def asked(strategy: tf.distribute.Strategy, folder: Path) -> Any:
    """The whole run, and one broken off three times; how many epochs follow in one that is stopped."""
    whole = run(strategy, folder, "whole")
    for at in (3, 9, 6):
        with pytest.raises(Interrupted):
            run(strategy, folder, "broken", at)
    return whole, run(strategy, folder, "broken"), stopped(strategy, folder)


def test_a_worker_that_stops_as_a_resumed_epoch_begins_stops_all(found: Any) -> None:
    assert [epochs for *_, epochs in found] == [0, 0]


def test_two_workers_decide_as_where_nothing_was_interrupted(found: Any) -> None:
    assert len(found) == 2
    for whole, resumed, _ in found:
        assert resumed == whole
        epochs = len(whole[1]["loss"])
        assert epochs < 20
        assert len(whole[0][-1]) == 2 * epochs
