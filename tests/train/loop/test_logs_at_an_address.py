"""The page's way to copy logs to an address: by the chief alone, through a bad network, and without any."""

from __future__ import annotations

import re
from pathlib import Path

import jobs
import pytest

pytest.importorskip("s3fs", reason="s3fs is not installed")
pytest.importorskip("moto.server", reason="moto is not installed")

import s3fs
from object_store import store

# What the page's block needs: its loop, under the strategy that the environment says. Each worker has a folder.
BEFORE = """
import json, logging, os
import keras, numpy as np, s3fs, tensorflow as tf
import mirrorkit as mk

worker = json.loads(os.environ.get("TF_CONFIG", '{"task": {"index": 0}}'))["task"]["index"]
os.mkdir(f"worker{worker}")
os.chdir(f"worker{worker}")
put = s3fs.S3FileSystem.put

def told(*args, **options):
    print("copies", flush=True)
    return put(*args, **options)

s3fs.S3FileSystem.put = told
strategy = mk.strategy.create("auto", devices="cpu:1")
with strategy.scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    optimizer = keras.optimizers.SGD(0.1)
loop = mk.train.Loop(strategy, mk.train.Step(model, optimizer, loss="mse"))
rows = np.ones((64, 4), "float32")
train = mk.data.batches(mk.data.arrays(rows, rows[:, :1]), global_batch_size=16)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """The page's block, to a bucket of S3; it says at its end whether the copy is whole."""
    page = (jobs.ROOT / "docs" / "watching.md").read_text()
    section = page.partition("## Logs at an address\n")[2]
    block = re.findall(r"^```python\n(.*?)^```", section, re.MULTILINE | re.DOTALL)[0]
    assert block.count("memory://bucket/runs/first") == 1
    block = block.replace("memory://bucket/runs/first", "s3://bucket/runs/first")
    trained, shown = re.split(r"^(?=print\()", block, flags=re.MULTILINE)
    path = tmp_path / "script.py"
    path.write_text(f"{BEFORE}{trained}print('trained', flush=True)\nif worker == 0:\n    {shown}")
    return path


@pytest.mark.slow
def test_the_chief_alone_copies_through_a_bad_network(script: Path, tmp_path: Path) -> None:
    with store(tmp_path, broken=0.1, busy=1.0) as network:
        command = (*jobs.LAUNCH, "--workers", 2, script)
        with jobs.process(tmp_path, *command, **network.environment) as job:
            jobs.until(lambda: network.faults >= 3, "answers of 503", by=job.process)
            network.busy = 0.1
            jobs.until(lambda: job.process.poll() is not None, "the end")
            assert job.process.returncode == 0, job.text[-4000:]
            says = [line for _, line in job.lines]
        assert {line for line in says if line.endswith("copies")} == {"worker 0 | copies"}
        assert says.count("worker 0 | copies") == 3, "two epochs, and the end"
        assert "worker 0 | True" in says
        assert "worker 1 | trained" in says
        local = tmp_path / "worker0" / "logs"
        expected = {str(path.relative_to(local)): path.read_bytes() for path in local.rglob("*") if path.is_file()}
        assert len(expected) >= 2, "the events and the CSV file"
        found = s3fs.S3FileSystem()
        paths = found.find("bucket/runs/first/logs")
        copied = {path.partition("/logs/")[2]: found.cat_file(path) for path in paths}
        assert copied == expected
        assert not (tmp_path / "worker1" / "logs").exists()
