"""examples/benchmarks/input_bound.py on little work."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "examples/benchmarks/input_bound.py"


@pytest.mark.slow  # four processes
def test_workers_beside_independent_jobs(tmp_path):
    work = "--workers 2 --images 256 --side 16 --batch-size 64 --rounds 2"
    done = subprocess.run(
        [sys.executable, SCRIPT, *work.split()],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(SCRIPT.parents[2]), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    speeds = dict(re.findall(r"^(workers|apart) +([\d,]+) ", done.stdout, re.MULTILINE))
    assert set(speeds) == {"workers", "apart"}
    assert all(int(speed.replace(",", "")) > 0 for speed in speeds.values())
    assert re.search(r"workers / apart: median \d\.\d+, .* n = 2", done.stdout)
