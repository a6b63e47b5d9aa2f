"""The checks, and export, on two real workers."""

from __future__ import annotations

import json
from pathlib import Path

import jobs
import pytest

SCRIPT = """
import json, pathlib, sys
import mirrorkit as mk
strategy = mk.strategy.create("multi_worker")
import numpy as np, tensorflow as tf
from mirrorkit._keras import keras

folder, worker = pathlib.Path(sys.argv[1]), mk.strategy.worker_index(strategy)
keras.utils.set_random_seed(0)
L = keras.layers
with strategy.scope():
    layers = [L.Dense(6, name="first"), L.Dropout(0.5), L.Lambda(tf.math.log, name="log"), L.Dense(1)]
    model = keras.Sequential([keras.Input((4,)), *layers])
    optimizer = keras.optimizers.Adam(0.0)
model.layers[0].kernel.assign(np.ones((4, 6)))
step = mk.train.Step(model, optimizer, loss="mse")
loop = mk.train.Loop(strategy, step, steps_per_call=3)

def drift(value):
    if worker == 1:
        strategy.experimental_local_results(model.layers[0].kernel.value)[0][2, 1].assign(value)

answers = {}
answers["whole"] = str(mk.checks.in_sync(strategy, step))
drift(7.0)
answers["drifted"] = str(mk.checks.in_sync(strategy, step))
mk.checks.repair(strategy, step)
answers["repaired"] = bool(mk.checks.in_sync(strategy, step)), float(model.layers[0].kernel.numpy()[2, 1])

layers[1].rate = 0.0
x = np.random.default_rng(0).uniform(0.5, 1.5, (40, 4)).astype("float32")
data = lambda x: mk.data.batches(mk.data.arrays(x, x[:, :1]), global_batch_size=4)
loop.fit(data(x), verbose=0, callbacks=[mk.checks.InSync(every=4)])
drift(3.0)
try:
    loop.fit(data(x), verbose=0, callbacks=[mk.checks.InSync(every=4)])
except mk.errors.OutOfSyncError as error:
    answers["stopped"] = error.report.differing
mk.checks.repair(strategy, step)

bad = x.copy()
bad[22:24] = -1  # the second worker's rows of batch 5
try:
    loop.fit(data(bad), verbose=0, callbacks=[mk.checks.NanWatch()])
except mk.errors.NonFiniteLossError as error:
    answers["watched"] = str(error)

with strategy.scope():  # where new variables of the chief alone would wait for the other worker's for ever
    mk.train.export(loop, folder / f"exported-{worker}")
(folder / f"{worker}.json").write_text(json.dumps(answers))
"""


@pytest.mark.slow
def test_checks_and_export_on_two_workers(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    jobs.finished(tmp_path, "script.py", tmp_path)
    one, two = (json.loads((tmp_path / f"{worker}.json").read_text()) for worker in (0, 1))
    for answers in (one, two):
        assert answers["whole"].startswith("2 replicas hold the same bits in ")
        assert "first/kernel' on replica 1: 1 of 24 elements differ from replica 0, by at most 6" in answers["drifted"]
        assert answers["repaired"] == [True, 1.0]
        assert any("first/kernel" in path for path in answers["stopped"])
        assert "batch 5 of it" in answers["watched"]
    # each worker looks at its own rows
    assert "all numbers here stayed finite. Possible causes are another worker's rows" in one["watched"]
    assert "output of layer 'log' (Lambda)" in two["watched"]
    assert [path.name for path in tmp_path.glob("exported-*")] == ["exported-0"]
