"""The page's Weights & Biases and MLflow: the chief alone writes a run, and the next start goes on in it."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path

import jobs
import pytest

# What the page's blocks need, under the strategy of the workers.
BEFORE = """
import sys
import keras
import numpy as np
import mirrorkit as mk

strategy = mk.strategy.create("auto", devices="cpu:1")
with strategy.scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    optimizer = keras.optimizers.SGD(0.1)
step = mk.train.Step(model, optimizer, loss="mse")
rows = np.random.default_rng(0).normal(size=(64, 5)).astype("float32")
train = test = mk.data.batches(mk.data.arrays(rows[:, :4], rows[:, 4:]), global_batch_size=16)
"""


@pytest.mark.slow
def test_two_workers_write_one_run_with_which_the_next_start_goes_on(tmp_path: Path) -> None:
    page = (jobs.ROOT / "docs" / "watching.md").read_text()
    section = page.partition("## Weights & Biases, MLflow\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"^```python\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    script = tmp_path / "script.py"
    script.write_text((BEFORE + "".join(blocks)).replace("epochs=2", "epochs=int(sys.argv[1])"))
    for epochs in (2, 3):
        jobs.finished(tmp_path, script, epochs)

    written = [path.read_bytes() for path in sorted(tmp_path.glob("wandb/offline-run-*/run-digits-1.wandb"))]
    epochs_of_starts = [set(re.findall(rb"epoch/epoch\x82\x01.(\d+)", records)) for records in written]
    assert epochs_of_starts == [{b"0", b"1"}, {b"2"}]
    assert len(list(tmp_path.glob("wandb/offline-run-*"))) == 2, "one for each start, of the chief"

    with sqlite3.connect(tmp_path / "mlflow.db") as database:
        (count,) = database.execute("SELECT count(*) FROM runs").fetchone()
        steps = database.execute("SELECT step FROM metrics WHERE key = 'val_loss' ORDER BY step").fetchall()
    assert (count, steps) == (1, [(0,), (1,), (2,)])
