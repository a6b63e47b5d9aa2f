"""Files in a bucket of an S3 server, through a bad network."""

from __future__ import annotations

import contextlib
import os
import sys
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
def reader(folder: Path, network: Network) -> Iterator[Any]:
    server = {**KEYS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{network.port}"}
    with process(folder, sys.executable, SCRIPT, "s3://sets/all", PYTHONPATH=PATH, **server) as job:
        yield job


def said(job: Any) -> list[str]:
    assert job.end() == 0, job.text[-5000:]
    return [line for _, line in job.lines if line.partition(":")[0] in READ]


def test_a_network_that_breaks_changes_no_byte(served, tmp_path):
    port, _, expected = served
    with contextlib.closing(Network(port, broken=0.05, busy=0.05)) as between:
        with reader(tmp_path, between) as job:
            assert said(job) == expected
        assert between.faults > 10
