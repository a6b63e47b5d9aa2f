"""The training that `soak.py` strikes: everything random in it, four replicas or workers, saved every few steps.

    python tests/kills/killed_training.py --out weights.npz [--folder checkpoints] [--log steps.txt] [--epochs 12]
        [--pace file] [--with shard_optimizer|table] [--data records|... --set folder]

It writes all its variables, its history, and the steps and updates counted to `--out`, and appends a line to `--log`
when it begins and after every call: `begin <steps done>`, `step <steps done>`. Of several workers the chief does so;
each writes an `--out` of its own, with the worker's number in the name of the file.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import mirrorkit as mk
from mirrorkit._keras import keras

STEPS_PER_EPOCH = 20
EVERY = 5
TABLE = 300_000  # rows of 64 bytes: smaller tables are not updated in place
L = keras.layers


class Log(keras.callbacks.Callback):  # type: ignore[name-defined]
    """Tells the killer how far the run is."""

    def __init__(self, path: str, pace: Path) -> None:
        super().__init__()
        self.pace = pace
        self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)  # unbuffered, so that a line outlives us

    def set_loop(self, loop: Any) -> None:
        self.loop = loop
        self.began = False

    def get_state(self) -> None:
        """Nothing to save: each process begins."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if not self.began:
            os.write(self.file, b"begin %d\n" % self.loop.position.steps)
            self.began = True

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        os.write(self.file, b"step %d\n" % self.loop.position.steps)
        if self.pace.is_file():
            time.sleep(0.2)


def net() -> Any:
    """Augmentation, statistics, Dropout; and enough weights that a save takes a while."""
    return keras.Sequential(
        [
            keras.Input((8, 8, 3)),
            L.Rescaling(1 / 255),
            L.RandomFlip("horizontal"),
            L.Conv2D(8, 3, padding="same", use_bias=False),
            L.BatchNormalization(),
            L.Activation("relu"),
            L.Flatten(),
            L.Dense(1024, activation="relu"),
            L.Dropout(0.3),
            L.Dense(10),
        ]
    )


def table_net() -> Any:
    """A large table, of which a step updates a few rows."""
    return keras.Sequential([keras.Input((3,), dtype="int64"), L.Embedding(TABLE, 16), L.Flatten(), L.Dense(10)])


def recipe(data: str, folder: Path, images: np.ndarray, labels: np.ndarray, **options: Any) -> Any:
    """The same examples from memory, the devices, files of several formats, or an object; files are written once."""
    if data in FILES and not folder.exists():
        unfinished = folder.with_name("unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()
        FILES[data](unfinished, images, labels)
        unfinished.rename(folder)
    if data == "records":
        return mk.data.records(folder, shuffle_buffer=128, **options)
    if data == "parquet":
        return mk.data.parquet(
            folder, x="x", y="y", shuffle_buffer=128, map=lambda x, y: (tf.reshape(x, [-1, 8, 8, 3]), y), **options
        )
    if data == "image_folder":
        return mk.data.image_folder(folder, image_size=(8, 8), **options)
    if data == "source":
        return mk.data.source((images, labels), num_classes=10, **options)
    split = mk.data.arrays(images, labels, num_classes=10)
    if data == "resident":
        return mk.data.resident(split, **options)
    memory = mk.data.batches(split, **options)
    if data == "mix":
        return mk.data.mix({memory: 1, mk.data.source((images // 2, labels), num_classes=10, **options): 2}, seed=2)
    return memory


def write_parquet(folder: Path, images: np.ndarray, labels: np.ndarray) -> None:
    """Two files, with row groups that no batch divides."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = pa.FixedSizeListArray.from_arrays(pa.array(images.reshape(-1)), images[0].size)
    table, half = pa.table({"x": rows, "y": labels}), len(labels) // 2
    pq.write_table(table.slice(0, half), folder / "a.parquet", row_group_size=50)
    pq.write_table(table.slice(half), folder / "b.parquet", row_group_size=50)


def write_images(folder: Path, images: np.ndarray, labels: np.ndarray) -> None:
    """A PNG of each, in the folder of its class."""
    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        (folder / str(label)).mkdir(exist_ok=True)
        tf.io.write_file(str(folder / str(label) / f"{number}.png"), tf.io.encode_png(image))


def write_records(folder: Path, images: np.ndarray, labels: np.ndarray) -> None:
    """Three files."""
    mk.data.write_records(mk.data.arrays(images, labels), folder, num_files=3)


FILES = {"records": write_records, "parquet": write_parquet, "image_folder": write_images}


def main() -> None:
    """Train, save, write the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", required=True)
    parser.add_argument("--folder", help="of checkpoints; without it none are made")
    parser.add_argument("--log")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--pace", default=os.devnull, help="while this file is there, 0.2 s pass after each call")
    parser.add_argument("--with", dest="how", choices=["shard_optimizer", "table"], help="of a process by itself")
    parser.add_argument("--data", default="batches", help="where the examples are read from")
    parser.add_argument("--set", type=Path, default=Path("set"), help="the folder of those in files")
    options = parser.parse_args()

    cluster = mk.cluster.detect()
    if cluster is None or not cluster.ps:  # parameter servers are asynchronous
        mk.reproducible.enable(seed=1)
    strategy = mk.testing.virtual_replicas(4) if cluster is None else mk.strategy.create("auto")
    rng = np.random.default_rng(0)
    count, of_table = STEPS_PER_EPOCH * 32 - 5, options.how == "table"  # the last batch is smaller
    inputs = rng.integers(TABLE, size=(count, 3)) if of_table else rng.integers(0, 256, (count, 8, 8, 3), "uint8")
    train = recipe(
        options.data,
        options.set,
        inputs,
        rng.integers(0, 10, count),
        global_batch_size=32,
        shuffle=True,
        seed=2,
        augment=[] if of_table else [mk.data.augment.flip()],
    )
    with strategy.scope():
        model, optimizer = table_net() if of_table else net(), keras.optimizers.Adam(1e-3)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    how = {"shard_optimizer": options.how == "shard_optimizer", "sparse_embeddings": of_table or "auto"}
    step = mk.train.Step(model, optimizer, loss=loss, metrics=["accuracy"], **how)
    loop = mk.train.Loop(strategy, step, steps_per_call=2)
    callbacks: list[Any] = (
        [Log(options.log, Path(options.pace))] if options.log and mk.strategy.is_chief(strategy) else []
    )
    if options.folder:
        callbacks.append(mk.train.Checkpoints(options.folder, every=EVERY))
    report = loop.fit(train, epochs=options.epochs, validation_data=train, callbacks=callbacks, verbose=0)
    values = {str(i): getattr(v, "value", v).numpy() for i, v in enumerate(step.saved_variables)}
    out = options.out if cluster is None else f"{options.out}{cluster.task_index}.npz"
    values["counted"] = np.array([loop.position.steps, int(optimizer.iterations.value.numpy())])
    np.savez(out, history=np.array(json.dumps(report.history)), **values)


if __name__ == "__main__":
    main()
