"""One script, unchanged but for --strategy, gives the same weights under every strategy."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from launching import ROOT, environment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.usefixtures("with_onednn")]
DATA = "mnist" if os.environ.get("MIRRORKIT_DATA") else "synthetic"


def test_every_strategy_gives_the_weights_of_one_device(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "same_weights.py"), "--data", DATA, "--epochs", "1"],
        cwd=tmp_path,
        env=environment(TMPDIR=str(tmp_path)),
        capture_output=True,
        text=True,
        errors="replace",
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    found = dict(re.findall(r"^(\w+) +differs from one_device by (\S+)$", done.stdout, re.MULTILINE))
    assert list(found) == ["one_device", "mirrored", "central_storage", "multi_worker"]
    assert all(float(value) < 1e-5 for value in found.values()), found
    assert f"MirroredStrategy, 2 replicas on CPU:0 CPU:1, {DATA}" in done.stdout
    assert f"worker 1 | MultiWorkerMirroredStrategy, 2 replicas on CPU:0 of each of 2 workers, {DATA}" in done.stdout
