"""One script, unchanged but for --strategy, gives the same weights under every strategy."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
from jobs import ROOT, process

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.usefixtures("with_onednn")]
DATA = "mnist" if os.environ.get("MIRRORKIT_DATA") else "synthetic"


def test_every_strategy_gives_the_weights_of_one_device(tmp_path: Path) -> None:
    script = ROOT / "examples" / "same_weights.py"
    with process(tmp_path, sys.executable, script, "--data", DATA, "--epochs", 1) as job:
        assert job.end(800) == 0, job.text[-6000:]
    found = dict(re.findall(r"^(\w+) +differs from one_device by (\S+)$", job.text, re.MULTILINE))
    assert list(found) == ["one_device", "mirrored", "central_storage", "multi_worker"]
    assert all(float(value) < 1e-5 for value in found.values()), found
    assert f"MirroredStrategy, 2 replicas on CPU:0 CPU:1, {DATA}" in job.text
    assert f"worker 1 | MultiWorkerMirroredStrategy, 2 replicas on CPU:0 of each of 2 workers, {DATA}" in job.text
