"""The other scripts of examples/benchmarks on little work."""

from __future__ import annotations

import json
import re

import pytest


@pytest.mark.slow  # four processes
def test_workers_beside_independent_jobs(run_script):
    printed = run_script("input_bound.py --workers 2 --images 256 --side 16 --batch-size 64 --rounds 2")
    speeds = dict(re.findall(r"^(workers|apart) +([\d,]+) ", printed, re.MULTILINE))
    assert set(speeds) == {"workers", "apart"}
    assert all(int(speed.replace(",", "")) > 0 for speed in speeds.values())
    assert re.search(r"workers / apart: median \d\.\d+, .* n = 2", printed)


@pytest.mark.slow  # a process, or several, for each
@pytest.mark.parametrize(
    ("command", "rows"),
    [
        ("joined_update.py --nets mnist_cnn --repeats 2 --updates 2 --limits 0 16", 2),
        ("streaming_memory.py --megabytes 4 8", 2),
        ("model_memory.py --width 32 --batch-size 32 --rounds 1", 8),
    ],
)
def test_a_script_writes_a_row_for_each_thing_that_it_measures(command, rows, run_script, tmp_path):
    figures = tmp_path / "figures.json"
    run_script(f"{command} --json {figures}")
    written = json.loads(figures.read_text())
    assert written["benchmark"] == command.partition(".")[0]
    assert len(written["rows"]) == rows
