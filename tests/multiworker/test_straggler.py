"""The anatomy of a step names the worker that holds the others up, on every worker."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from launching import launched
from straggling_worker import SECONDS

HERE = Path(__file__).parent


@pytest.mark.slow  # two workers, which compile and sleep
@pytest.mark.alone  # it measures how long they sleep
def test_every_worker_is_told_which_one_is_slow(tmp_path):
    launched(HERE / "straggling_worker.py", tmp_path, folder=tmp_path)
    for worker in (0, 1):
        found = json.loads((tmp_path / f"found{worker}.json").read_text())
        for where in ("model", "input"):
            fast, slow = found[where]["workers"]
            assert found[where]["straggler"] == 1
            assert slow >= 0.9 * SECONDS
            assert fast < 0.5 * SECONDS, "the wait for the slow worker is not the fast one's own"
            assert "worker 1 holds the others up" in found[where]["text"]
