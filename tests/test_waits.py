"""What would be waited for without an end: locks, pipes, numbers that nobody meant."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mirrorkit as mk
from mirrorkit import files, journal
from mirrorkit.errors import FileError, MirrorkitError
from mirrorkit.launch import launch

pytestmark = pytest.mark.timeout(60)
ROWS = np.zeros((8, 2), "float32")


def pipe(folder: Path, name: str) -> Path:
    folder.mkdir(exist_ok=True)
    os.mkfifo(folder / name)
    return folder / name


TOO_MANY: dict[str, Callable[[], Any]] = {
    "threads": lambda: mk.data.source((ROWS,), global_batch_size=2, threads=10**9),
    "processes": lambda: mk.data.source((ROWS,), global_batch_size=2, processes=10**9),
    "num_files": lambda: mk.data.write_records(mk.data.arrays(ROWS, ROWS), "set", num_files=10**9),
    "count": lambda: mk.data.batches(mk.data.arrays(ROWS, ROWS), global_batch_size=2).epochs(10**9),
    "global_batch_size": lambda: mk.data.batches(mk.data.arrays(ROWS, ROWS), global_batch_size=10**30),
    "replicas": lambda: mk.batching.per_replica_sizes(8, 10**9),
    "replicas ": lambda: mk.batching.per_replica_sizes(8, 10**30),
    "depth": lambda: mk.models.create("wide_resnet", depth=6 * 10**30 + 4),
    "devices": lambda: mk.strategy.create("mirrored", devices=f"cpu:{10**30}"),
    "workers": lambda: launch(__file__, workers=10**30),
    "ps": lambda: launch(__file__, workers=1, ps=10**30),
    "start_timeout": lambda: mk.strategy.create("one_device", start_timeout=10**30),
}


@pytest.mark.parametrize("argument", TOO_MANY)
def test_a_number_that_nobody_meant_is_refused(argument: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(MirrorkitError, match=f"{argument.strip()} must|can be split into|{10**30} free ports|10{{30}}"):
        TOO_MANY[argument]()


def test_a_folder_that_another_process_locks(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(files, "_LONGEST", 0.2)
    held = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    try:
        with pytest.raises(FileError, match=f"lock of {tmp_path}, has not answered for"):
            mk.train.Checkpoints(tmp_path)._place.take()
    finally:
        os.close(held)
    mk.train.Checkpoints(tmp_path)._place.take()


def test_a_journal_that_nobody_reads(tmp_path: Path) -> None:
    path = pipe(tmp_path, "journal")
    journal.write(str(path), journal.STEPS, 1)
    reads = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    for steps in range(10**4):
        journal.write(str(path), journal.STEPS, steps)  # more than the pipe holds
    line = journal.parsed(os.read(reads, 2**20).decode().splitlines()[0])
    os.close(reads)
    assert line is not None
    assert line.steps == 0
