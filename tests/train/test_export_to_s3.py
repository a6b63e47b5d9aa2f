"""A SavedModel at an S3 server: a process that is killed while it replaces one, and a bad network."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import jobs
import pytest
from test_export_places import PARTS, served
from training_helpers import sequential

pytest.importorskip("s3fs", reason="s3fs is not installed")
pytest.importorskip("moto.server", reason="moto is not installed")

from object_store import store

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.object_storage import ObjectStorage

ADDRESS = "s3://bucket/models/m"
EXPORTS = """
import sys
import keras
import mirrorkit as mk

for value in 1.0, 2.0:
    first = keras.layers.Dense(50_000, kernel_initializer=keras.initializers.Constant(value / 50_000))
    last = keras.layers.Dense(1, kernel_initializer="ones")
    mk.train.export(keras.Sequential([keras.Input((4,)), first, last]), sys.argv[1])
    print("exported", value, flush=True)
"""


def net(value: float) -> Any:
    return sequential((4,), keras.layers.Dense(1, kernel_initializer=keras.initializers.Constant(value)))


@pytest.mark.slow
def test_a_process_that_is_killed_within_an_upload_leaves_nothing_that_loads(tmp_path: Path) -> None:
    (tmp_path / "exports.py").write_text(EXPORTS)
    command = (sys.executable, tmp_path / "exports.py", ADDRESS)
    with store(tmp_path, delay=0.05, objects=".data-") as network:
        with jobs.process(tmp_path, *command, **network.environment) as job:
            jobs.until(lambda: network.uploads == 2, "the upload of the second one's variables", by=job.process)
            job.process.kill()
            job.process.wait(jobs.LIMIT)
            assert job.says("exported 1.0")
            assert not job.says("exported 2.0")
        left = ObjectStorage(ADDRESS).paths()
        assert "saved_model.pb" not in left
        assert "variables/variables.index" in left, "of the first one"
        assert served(ADDRESS, tmp_path / "copy") is None
        mk.train.export(net(3.0), ADDRESS)
        assert served(ADDRESS, tmp_path / "copy") == 12


@pytest.mark.slow
def test_through_a_bad_network(tmp_path: Path, monkeypatch: Any) -> None:
    import s3fs

    with store(tmp_path, broken=0.1, busy=0.1) as network:
        fs = s3fs.S3FileSystem()
        fs.pipe_file("bucket/models/m2/other", b"of another folder")
        fs.call_s3("put_object", Bucket="bucket", Key="models/m/")  # what a console makes of an empty folder
        with monkeypatch.context() as patch:
            for name, value in network.environment.items():
                patch.setenv(name, value)
            s3fs.S3FileSystem.clear_instance_cache()
            for value in range(1, 6):
                mk.train.export(net(value), ADDRESS)
        assert network.faults, os.environ["AWS_ENDPOINT_URL"]
        s3fs.S3FileSystem.clear_instance_cache()
        assert ObjectStorage(ADDRESS).paths() == PARTS
        assert served(ADDRESS, tmp_path / "copy") == 20
