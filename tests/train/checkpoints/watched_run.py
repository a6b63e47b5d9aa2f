"""A training whose course callbacks decide: rates, stops, best weights, files."""

from __future__ import annotations

import csv
import json
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.util import event_pb2

import mirrorkit as mk
from mirrorkit._keras import keras

C = keras.callbacks
EPOCHS = 12
STEPS = 5  # of an epoch


class Counting(C.Callback):  # type: ignore[name-defined, misc]
    """The user's own, which remembers values of several kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.epochs, self.losses, self.rates = 0, [], {}
        self.sums = np.zeros(2)

    def get_state(self) -> Any:
        return self.epochs, self.losses, self.rates, self.sums, self.batches

    def set_state(self, state: Any) -> None:
        self.epochs, self.losses, self.rates, self.sums, self.batches = state

    def on_train_begin(self, logs: Any = None) -> None:
        self.batches = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epochs += 1

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.batches += 1
        self.losses.append(logs["loss"])
        self.sums += [1, logs["loss"]]

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.rates[epoch] = (self.model.optimizer.learning_rate.numpy(), len(self.losses))


class Asked(C.Callback):  # type: ignore[name-defined, misc]
    """The user's own, which says what it remembers: scales the rate down where the loss of a step jumps up."""

    def __init__(self) -> None:
        super().__init__()
        self.recent: deque[float] = deque(maxlen=4)

    def get_state(self) -> Any:
        return list(self.recent)

    def set_state(self, state: Any) -> None:
        self.recent = deque(state, maxlen=4)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if len(self.recent) == 4 and logs["loss"] > 1.02 * sum(self.recent) / 4:
            self.model.optimizer.learning_rate.assign(self.model.optimizer.learning_rate * 0.97)
        self.recent.append(logs["loss"])


def make_loop(strategy: tf.distribute.Strategy) -> mk.train.Loop:
    """A small net with an optimizer that keeps averages."""
    keras.utils.set_random_seed(0)
    with strategy.scope():
        layers = [keras.layers.Dense(6, activation="relu"), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((4,)), *layers])
        optimizer = keras.optimizers.SGD(0.3, momentum=0.5, use_ema=True, ema_momentum=0.8)
    return mk.train.Loop(strategy, mk.train.Step(model, optimizer, loss="mse"), steps_per_call=1)


def data() -> tuple[mk.data.Recipe, mk.data.Recipe]:
    """Five batches of 12 to train on, and two to validate."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(84, 4)).astype("float32")
    y = (np.sin(x.sum(1, keepdims=True)) + 0.3 * rng.normal(size=(84, 1))).astype("float32")
    train = mk.data.batches(mk.data.arrays(x[:60], y[:60]), global_batch_size=12, shuffle=True, seed=5)
    return train, mk.data.batches(mk.data.arrays(x[60:], y[60:]), global_batch_size=12)


def callbacks_in(folder: Path) -> list[Any]:
    """Keras's callbacks and two of the user's."""
    folder.mkdir(parents=True, exist_ok=True)
    return [
        C.LearningRateScheduler(lambda epoch, rate: rate * 0.98),
        C.SwapEMAWeights(),
        C.EarlyStopping("val_loss", patience=2, min_delta=0.005, restore_best_weights=True),
        C.ReduceLROnPlateau("val_loss", factor=0.7, patience=1, min_delta=0.01, cooldown=1),
        C.ModelCheckpoint(folder / "best-{epoch}.weights.h5", "val_loss", save_best_only=True, save_weights_only=True),
        C.ModelCheckpoint(folder / "at-{epoch}-{batch}.weights.h5", save_freq=7, save_weights_only=True),
        C.CSVLogger(folder / "log.csv", append=True),
        C.TensorBoard(folder / "board", update_freq=1, write_graph=False),
        Counting(),
        Asked(),
    ]


def fit(loop: mk.train.Loop, callbacks: list[Any], checkpoints: Path | None = None, every: Any = 2) -> Any:
    """Train; return the report."""
    train, validation = data()
    savers = [] if checkpoints is None else [mk.train.Checkpoints(checkpoints, every=every, keep=99)]
    options: dict[str, Any] = {"epochs": EPOCHS, "validation_data": validation, "verbose": 0}
    return loop.fit(train, callbacks=[*savers, *callbacks], **options)


def outcome(loop: mk.train.Loop, folder: Path, report: Any, callbacks: Any) -> dict[str, Any]:
    """All that a run leaves: history, weights, what callbacks remember, files; as JSON holds it."""
    stopping, plateau, best, often, _, board, counting, asked = callbacks[2:10]
    weights = {path.name: _values(path, loop) for path in sorted(folder.glob("*.h5"))}
    remembered = {
        "stopping": [stopping.wait, stopping.best, stopping.stopped_epoch, stopping.best_epoch],
        "plateau": [plateau.wait, plateau.best, plateau.cooldown_counter],
        "savers": [best.best, often._batches_seen_since_last_saving],
        "board": board._global_train_batch,
        "counting": [counting.epochs, counting.batches, counting.losses, counting.sums.tolist(), str(counting.rates)],
        "asked": asked.get_state(),
    }
    found = {"history": report.history, "weights": [value.tolist() for value in loop.step.model.get_weights()]}
    found |= {"remembered": remembered, "files": weights, "rows": rows(folder), "scalars": scalars(folder / "board")}
    return json.loads(json.dumps(found))


def _values(path: Path, loop: mk.train.Loop) -> Any:
    now = loop.step.model.get_weights()
    loop.step.model.load_weights(path)
    found = [value.tolist() for value in loop.step.model.get_weights()]
    loop.step.model.set_weights(now)
    return found


def rows(folder: Path) -> dict[str, Any]:
    """The rows of the CSV file by epoch. An epoch that was ended twice has two; the last counts."""
    with (folder / "log.csv").open() as file:
        lines = list(csv.reader(file))
    assert [line[0] for line in lines].count("epoch") == 1, "one header"
    return {line[0]: line for line in lines}


def scalars(folder: Path) -> dict[str, Any]:
    """What TensorBoard shows, by tag and step; what was written again replaces what was there."""
    found = {}
    for path in sorted(folder.rglob("events*")):
        for record in tf.data.TFRecordDataset(str(path)):
            event = event_pb2.Event.FromString(record.numpy())
            for value in event.summary.value:
                found[f"{path.parent.name} {value.tag} {event.step}"] = tf.make_ndarray(value.tensor).tolist()
    return found
