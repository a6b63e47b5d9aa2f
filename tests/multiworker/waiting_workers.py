"""One of two workers: waits for the other at barriers, exports, and runs callbacks of its own."""

from __future__ import annotations

import argparse
import json
import logging
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np

import mirrorkit as mk
from mirrorkit.strategy import barrier
from mirrorkit.train import exporting

SECONDS = 2.0  # by which one worker comes later, where the other would otherwise have left


class Written(keras.callbacks.Callback):
    """Writes a file at the end of every epoch."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.path.write_text(str(epoch))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    strategy = mk.strategy.create("multi_worker", devices="cpu")
    me, found = mk.strategy.worker_index(strategy), {}

    if me == 1:
        time.sleep(SECONDS)
        (folder / "prepared").touch()
    mk.strategy.wait_for_all(strategy, "prepared")
    found["prepared"] = (folder / "prepared").exists()

    barrier.PATIENCE = SECONDS / 4
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("mirrorkit").addHandler(handler)
    if me == 1:
        time.sleep(SECONDS)
    mk.strategy.wait_for_all(strategy, "late")
    barrier.PATIENCE = 60.0
    found["said"] = said

    try:
        mk.strategy.wait_for_all(strategy, f"of worker {me}")
    except mk.errors.ClusterError as error:
        found["different"] = str(error)

    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, kernel_initializer="ones")])
        step = mk.train.Step(model, keras.optimizers.SGD(0.1), loss="mse")
    loop = mk.train.Loop(strategy, step)
    x = np.ones((8, 4), "float32")
    data = mk.data.batches(mk.data.arrays(x, np.zeros((8, 3), "float32")), global_batch_size=4)
    chiefs = Written(folder / f"chiefs{me}")
    chiefs.chief_only = True
    loop.fit(data, callbacks=[Written(folder / f"own{me}"), chiefs], verbose=0)

    replace = exporting._replace

    def slowly(*arguments: Any) -> None:
        time.sleep(SECONDS)
        replace(*arguments)

    exporting._replace = slowly
    path = mk.train.export(loop, folder / "exported.keras")
    found["exported"] = np.asarray(keras.saving.load_model(path)(x)).tolist() == np.asarray(model(x)).tolist()
    (folder / "file").touch()
    try:
        mk.train.export(loop, folder / "file" / "within.keras")
    except mk.errors.FileError as error:
        found["failed"] = str(error)
    (folder / f"found{me}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
