"""The anatomy of a step names the worker that holds the others up, on every worker, and each one's input rate."""

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
        # 8 rows a batch, which each worker reads whole; 4 of them are its own.
        assert found["input"]["rates"][1] <= 4 / (0.9 * SECONDS)
        # Of a recipe each reads 4 of the 8: a row takes SECONDS on worker 1, a fifth of it on worker 0. A busy machine
        # sleeps longer; with all 8 it would be half as fast.
        rates = found["rows"]["rates"]
        assert 0.6 / SECONDS < rates[1] <= 1 / (0.9 * SECONDS)
        assert 2 * rates[1] < rates[0] <= 5 / (0.9 * SECONDS)
        assert found["rows"]["straggler"] == 1
        both = f"{rates[0]:,.0f} + {rates[1]:,.0f} = {sum(rates):,.0f} examples/s"
        assert f"Input alone, by worker: {both}; the training takes" in found["rows"]["text"]
