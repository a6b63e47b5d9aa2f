"""Measure whether a process's memory grows with its epochs: it trains, validates, saves and runs callbacks 1,000 times.

    python examples/benchmarks/epochs_memory.py

One process with two virtual replicas trains a small net, resident and streamed in turns of a tenth of the epochs, with
validation, `Checkpoints`, `CSVLogger`, `ReduceLROnPlateau` and `EarlyStopping`. After each tenth it collects garbage
and reads its resident memory.
"""

from __future__ import annotations

import gc
import os
import tempfile
from pathlib import Path
from typing import Any

import keras
import numpy as np
from harness.processes import Group
from harness.report import Column, figures, parsed, parser_of, present, report_of

import mirrorkit as mk

TENTHS = 10


class Trains:
    """A process that trains on and on."""

    def __init__(self) -> None:
        self.strategy = mk.strategy.create("mirrored", devices="cpu:2")
        rng = np.random.default_rng(0)
        x = rng.normal(size=(256, 16)).astype("float32")
        split = mk.data.arrays(x, (x[:, 0] > 0).astype("int64"), num_classes=2)
        options: dict[str, Any] = {"global_batch_size": 32, "shuffle": True, "seed": 0}
        self.data = mk.data.resident(split, **options), mk.data.batches(split, **options)
        with self.strategy.scope():
            layers = [keras.layers.Dense(32, "relu"), keras.layers.Dropout(0.2), keras.layers.Dense(2)]
            model, optimizer = keras.Sequential([keras.Input((16,)), *layers]), keras.optimizers.Adam(1e-3)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self.loop = mk.train.Loop(self.strategy, mk.train.Step(model, optimizer, loss=loss, metrics=["accuracy"]))

    def train(self, epochs: int, turn: int, folder: str) -> float:
        """Train so many epochs more; return the process's resident memory in MB."""
        callbacks: list[Any] = [
            mk.train.Checkpoints(Path(folder, f"run-{turn}"), keep=2),
            keras.callbacks.CSVLogger(str(Path(folder, "log.csv")), append=True),
            keras.callbacks.ReduceLROnPlateau(patience=10**6),
            keras.callbacks.EarlyStopping(patience=10**6, restore_best_weights=True),
        ]
        self.loop.position = mk.train.Position()
        data = self.data[turn % 2]
        self.loop.fit(data, epochs=epochs, validation_data=data, callbacks=callbacks, verbose=0)
        gc.collect()
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--epochs", type=int, default=1000)
    options = parsed(parser)
    rows, each = [], max(1, options.epochs // TENTHS)
    with tempfile.TemporaryDirectory(prefix="mirrorkit-") as folder, Group("epochs_memory:Trains") as process:
        for turn in range(TENTHS):
            megabytes = process.call("train", epochs=each, turn=turn, folder=folder)
            rows.append({"epochs": (turn + 1) * each, "megabytes": megabytes, **figures([megabytes])})
    found = [row["megabytes"] for row in rows]
    note = f"from epoch {rows[1]['epochs']} to {rows[-1]['epochs']}: {found[-1] - found[1]:+.1f} MB"
    columns = [Column("epochs", "epochs", "d"), Column("megabytes", "resident, MB", ".1f")]
    title = "Resident memory of a process that trains on and on, MB"
    present(report_of("epochs_memory", title, columns, rows, unit="MB", notes=[note]), options)


if __name__ == "__main__":
    main()
