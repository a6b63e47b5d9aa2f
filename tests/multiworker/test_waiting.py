"""Workers wait for each other: at barriers, and for a file that the chief exports."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any
from unittest import mock

import jobs
import keras
import numpy as np
import pytest
import tensorflow as tf

import mirrorkit as mk
from mirrorkit.strategy import barrier
from mirrorkit.train import export_places
from mirrorkit.train.checkpoints import shared

pytestmark = pytest.mark.slow  # two workers
SECONDS = 2.0  # by which one worker comes later, where the other would otherwise have left


class Written(keras.callbacks.Callback):
    """Writes a file at the end of every epoch."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.path.write_text(str(epoch))


def asked(strategy: tf.distribute.Strategy, folder: Path) -> dict[str, Any]:
    """One of two workers: waits for the other at barriers, exports, and runs callbacks of its own."""
    found: dict[str, Any] = {}
    me = mk.strategy.worker_index(strategy)
    if me == 1:
        time.sleep(SECONDS)
        (folder / "prepared").touch()
    mk.strategy.wait_for_all(strategy, "prepared")
    found["prepared"] = (folder / "prepared").exists()

    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("mirrorkit").addHandler(handler)
    with mock.patch.object(barrier, "PATIENCE", SECONDS / 4):
        if me == 1:
            time.sleep(SECONDS)
        mk.strategy.wait_for_all(strategy, "late")
    logging.getLogger("mirrorkit").removeHandler(handler)
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

    replace = export_places.replace

    def slowly(*arguments: Any) -> None:
        time.sleep(SECONDS)
        replace(*arguments)

    with mock.patch.object(export_places, "replace", slowly):
        path = mk.train.export(loop, folder / "exported.keras")
    found["exported"] = np.asarray(keras.saving.load_model(path)(x)).tolist() == np.asarray(model(x)).tolist()
    (folder / "file").touch()
    try:
        mk.train.export(loop, folder / "file" / "within.keras")
    except mk.errors.FileError as error:
        found["failed"] = str(error)

    local = mk.train.Checkpoints(folder / f"checkpoints{me}")
    try:
        with mock.patch.object(shared, "_SEES", SECONDS / 4):
            loop.fit(data, callbacks=[local], verbose=0)
    except mk.errors.CheckpointError as error:
        found["local"] = str(error)
    return found


def test_a_worker_waits_at_barriers_for_one_that_comes_later(found):
    early, late = found
    assert early["prepared"]
    assert late["prepared"]
    (said,) = early["said"]
    assert "Waiting for the other workers at the barrier 'late'" in said
    assert late["said"] == []
    for worker in found:
        assert "the barrier 'of worker 0' on worker 0 and the barrier 'of worker 1' on worker 1" in worker["different"]


def test_export_returns_on_every_worker_when_the_file_is_whole_and_fails_on_all(found):
    assert [worker["exported"] for worker in found] == [True, True]
    chief, other = found
    assert chief["failed"].startswith("Nothing could be written to")
    assert other["failed"].startswith("The chief could not export")


def test_a_folder_of_checkpoints_that_a_worker_does_not_see_is_refused_on_all(found, folder):
    for worker in found:
        assert "every worker restores from there, but worker 1 does not see the chief's files there" in worker["local"]
    assert not list(folder.glob("checkpoints*/*.npz"))


def test_a_callback_of_ones_own_may_be_the_chiefs_alone(found, folder):
    assert {path.name for pattern in ("own*", "chiefs*") for path in folder.glob(pattern)} == {
        "chiefs0",
        "own0",
        "own1",
    }


ENDS_EARLY = """
import mirrorkit as mk
strategy = mk.strategy.create("multi_worker", devices="cpu")
mk.strategy.of_all_workers(strategy, 1)
if mk.strategy.is_chief(strategy):
    mk.strategy.of_all_workers(strategy, 2)
"""


def test_a_worker_that_has_exited_is_named_where_numbers_are_exchanged(tmp_path):
    (tmp_path / "script.py").write_text(ENDS_EARLY)
    with jobs.launched(tmp_path, "--workers", 2, "script.py") as job:
        assert job.end() == 1
    assert job.says(r"ClusterError: worker 1 \(\S+\) is gone, and the other workers cannot go on")
