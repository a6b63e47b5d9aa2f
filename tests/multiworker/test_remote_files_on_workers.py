"""Two workers train on files in a bucket, behind a bad network, as they do on the same files on disk."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import numpy as np
import pytest
from jobs import LAUNCH, ROOT, process

pytest.importorskip("s3fs", reason="s3fs is not installed")
pytest.importorskip("moto.server", reason="moto is not installed")
pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install pyarrow")

SCRIPT = Path(__file__).with_name("remote_training.py")
DATA = ROOT / "tests" / "data"  # whose sets these are
PATH = os.pathsep.join(map(str, (ROOT, ROOT / "tests", DATA, SCRIPT.parent)))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_weights_are_those_of_files_on_disk(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(DATA))
    import fsspec
    from object_store import KEYS, Network, s3_server
    from remote_sets import write_sets
    from remote_training import READ

    write_sets(tmp_path / "sets")
    for name in ("disk", "bucket"):
        (tmp_path / name).mkdir()
    with process(
        tmp_path, *LAUNCH, "--workers", 2, SCRIPT, tmp_path / "sets", tmp_path / "disk", PYTHONPATH=PATH
    ) as job:
        assert job.end() == 0, job.text[-8000:]
    with s3_server(tmp_path) as port, contextlib.closing(Network(port, broken=0.05, busy=0.05)) as network:
        direct = {"key": "test", "secret": "test", "endpoint_url": f"http://127.0.0.1:{port}"}
        system = fsspec.filesystem("s3", **direct)
        system.mkdir("sets")
        system.put(str(tmp_path / "sets"), "sets/all", recursive=True)
        server = {**KEYS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{network.port}", "PYTHONPATH": PATH}
        command = [*LAUNCH, "--workers", 2, SCRIPT, "s3://sets/all", tmp_path / "bucket"]
        with process(tmp_path, *command, **server) as job:
            assert job.end(600) == 0, job.text[-8000:]
        assert network.faults > 10
    for kind in READ:
        for worker in (0, 1):
            with (
                np.load(tmp_path / "disk" / f"{kind}{worker}.npz") as expected,
                np.load(tmp_path / "bucket" / f"{kind}{worker}.npz") as found,
            ):
                assert sorted(found.files) == sorted(expected.files)
                for name in expected.files:
                    np.testing.assert_array_equal(found[name], expected[name], err_msg=f"{kind} {name}")
