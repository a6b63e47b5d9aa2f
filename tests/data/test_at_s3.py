"""Files in a bucket of an S3 server, through a bad network and a shared cache."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jobs import ROOT, process

pytest.importorskip("s3fs", reason="s3fs is not installed")
pytest.importorskip("moto.server", reason="moto is not installed")
pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install pyarrow")

import reading_remote_sets
from object_store import KEYS, Network, s3_server
from remote_sets import BATCH, KINDS, digest, write_sets

SCRIPT = Path(reading_remote_sets.__file__)
PATH = os.pathsep.join(map(str, (ROOT, ROOT / "tests", ROOT / "tests" / "data")))

READ = reading_remote_sets.READ
CACHED = "filecache::s3://sets/all"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def served(tmp_path_factory: Any) -> Iterator[tuple[int, Path, list[str]]]:
    """The port of a server that holds a folder of sets at s3://sets/all, the folder, and what is to be read of them."""
    import fsspec

    folder = tmp_path_factory.mktemp("served")
    write_sets(folder / "sets")
    with s3_server(folder) as port:
        options = {"key": "test", "secret": "test", "endpoint_url": f"http://127.0.0.1:{port}"}
        system = fsspec.filesystem("s3", **options)
        system.mkdir("sets")
        system.put(str(folder / "sets"), "sets/all", recursive=True)
        local = {kind: KINDS[kind](folder / "sets", global_batch_size=BATCH, shuffle=True) for kind in READ}
        yield port, folder / "sets", [f"{kind}: {digest(recipe, None, 0)}" for kind, recipe in local.items()]


@contextlib.contextmanager
def reader(
    folder: Path, network: Network, *more: object, root: str = "s3://sets/all", **variables: str
) -> Iterator[Any]:
    server = {**KEYS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{network.port}"}
    command = [sys.executable, SCRIPT, root, *more]
    with process(folder, *command, PYTHONPATH=PATH, **server, **variables) as job:
        yield job


def said(job: Any) -> list[str]:
    assert job.end() == 0, job.text[-5000:]
    return [line for _, line in job.lines if line.partition(":")[0] in READ]


@pytest.mark.parametrize("network", [{}, {"broken": 0.05, "busy": 0.05}])
def test_two_processes_at_once_share_a_cold_cache_of_which_a_third_was_killed(served, tmp_path, network):
    port, _, expected = served
    cache = {"FSSPEC_FILECACHE": json.dumps({"cache_storage": str(tmp_path / "cache")}), "root": CACHED}
    go = tmp_path / "go"
    with contextlib.closing(Network(port, **network)) as between:
        with reader(tmp_path, between, **cache) as killed:
            while sum(path.is_file() for path in tmp_path.glob("cache/*/*")) < 8:
                time.sleep(0.01)
            killed.process.kill()
        with reader(tmp_path, between, go, **cache) as one, reader(tmp_path, between, go, **cache) as other:
            for job in (one, other):
                job.wait_for("ready")
            go.touch()
            assert said(one) == said(other) == expected
        assert not network or between.faults > 10
    downloaded = sum(times for (path, which), times in between.asked.items() if path.endswith(".png"))
    assert network or downloaded <= 130 + 16, "once, but for what the killed one was about to keep"
