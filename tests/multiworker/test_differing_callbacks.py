"""Workers whose callbacks differ, or whose chief may not write, all say so; none waits for another."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import mirrorkit as mk
from mirrorkit import files

pytestmark = pytest.mark.slow

SAYS = {
    "on the chief alone": "Checkpoints' on worker 0 and 'none' on worker 1",
    "on the other alone": "none' on worker 0 and 'Checkpoints' on worker 1",
    "another period": "Checkpoints every 2 steps' on worker 0 and 'Checkpoints every 3 steps' on worker 1",
    "another check": "NanWatch' on worker 0 and 'InSync every 500 steps' on worker 1",
    "another order": "InSync every 500 steps, NanWatch' on worker 0 and 'NanWatch, InSync every 500 steps' on worker 1",
    "a living owner": "checkpoints to",
    "a dead owner": "trained",
    "the chief's own": "trained",
    "one of Keras": "trained",
}


class Chiefs(mk.train.LoopCallback):
    """One that only the chief needs."""

    chief_only = True


def asked(strategy: tf.distribute.Strategy, folder: Path) -> dict[str, str]:
    """What a worker with other callbacks, or whose chief may not write, is told in each case."""
    me = mk.strategy.worker_index(strategy)
    with strategy.scope():
        model, optimizer = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)]), keras.optimizers.SGD(0.1)
    loop = mk.train.Loop(strategy, mk.train.Step(model, optimizer, loss="mse"), steps_per_call=2)
    data = mk.data.batches(mk.data.arrays(np.ones((8, 3), "float32"), np.ones((8, 1), "float32")), global_batch_size=2)
    if me == 0:
        for name, process in (("lives", os.getppid()), ("dead", 2**22 + 1)):
            (folder / name).mkdir()
            about = {**json.loads(files.this_process()), "pid": process, "started": files._started(process) or 1}
            (folder / name / ".owner").write_text(json.dumps(about))
    cases: dict[str, list[Any]] = {
        "on the chief alone": [mk.train.Checkpoints(folder / "run")] * (me == 0),
        "on the other alone": [mk.train.Checkpoints(folder / "run")] * (me == 1),
        "another period": [mk.train.Checkpoints(folder / "run", every=2 + me)],
        "another check": [mk.checks.InSync() if me else mk.checks.NanWatch()],
        "another order": [mk.checks.InSync(), mk.checks.NanWatch()][:: 1 - 2 * me],
        "a living owner": [mk.train.Checkpoints(folder / "lives")],
        "a dead owner": [mk.train.Checkpoints(folder / "dead")],
        "the chief's own": [Chiefs()] * (me == 0) + [mk.checks.InSync()],
        "one of Keras": [keras.callbacks.EarlyStopping("loss")] * me,
    }
    found = {}
    for name, callbacks in cases.items():
        try:
            loop.fit(data, callbacks=callbacks, verbose=0)
            found[name] = "trained"
        except mk.errors.MirrorkitError as error:
            found[name] = str(error)
    return found


def test_all_workers_say_what_differs(found: Any, folder: Path) -> None:
    for worker in found:
        assert worker.keys() == SAYS.keys()
        assert all(SAYS[name] in text for name, text in worker.items()), worker
    assert "Another run writes checkpoints" in found[0]["a living owner"]
    assert "The chief could not write checkpoints" in found[1]["a living owner"]
    assert not list(folder.glob("*/.owner-*"))
