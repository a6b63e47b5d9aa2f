"""Items that workers fetch for themselves: a job of two is killed, and one process goes on within the epoch."""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path

import fetching_training
import numpy as np
import pytest
from jobs import process, processes, until

from mirrorkit import data

SCRIPT = Path(fetching_training.__file__)
STEPS = fetching_training.EXAMPLES // fetching_training.BATCH  # of an epoch


def order(first: int, end: int) -> list[int]:
    """The items of the batches from one step of the training to another."""
    split = data.arrays(fetching_training.X, fetching_training.Y)
    recipe = data.batches(split, global_batch_size=fetching_training.BATCH, shuffle=True)
    items = [item for epoch in range(fetching_training.EPOCHS) for item in recipe.order(epoch).tolist()]
    return items[first * fetching_training.BATCH : end * fetching_training.BATCH]


def fetched(folder: Path, worker: int) -> list[int]:
    return [int(line.split()[0]) for line in (folder / f"fetched{worker}").read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_killed_job_of_two_goes_on_in_one_process(tmp_path):
    """Each has processes that fetch, which are to end with it."""
    options = ("--processes", 2)
    path = {"PYTHONPATH": os.pathsep.join(map(str, SCRIPT.parents[1:3]))}
    folder, whole = tmp_path / "killed", tmp_path / "whole"
    folder.mkdir()
    whole.mkdir()
    command = [sys.executable, "-m", "mirrorkit", "launch", "--workers", 2, SCRIPT, folder, "--kill", 13, *options]
    with process(folder, *command, **path) as job:
        assert job.end() != 0
    until(lambda: not processes(folder), "the end of all processes")
    compared = Counter(order(0, 1)[:4])  # before the first step, by both
    own = [Counter(fetched(folder, worker)) - compared for worker in (0, 1)]
    assert own[0].keys().isdisjoint(own[1])
    together = own[0] + own[1]
    assert together.keys() >= set(order(0, 13))
    assert set(together.values()) == {1}
    with process(folder, sys.executable, SCRIPT, folder, *options, **path) as alone:
        assert alone.end() == 0, alone.text[-5000:]
    with process(whole, sys.executable, SCRIPT, whole, *options, **path) as undisturbed:
        assert undisturbed.end() == 0, undisturbed.text[-5000:]
    # From the checkpoint of step 10 on each item that is left of the first epoch, and all of the second one.
    assert Counter(fetched(folder, 0)) == Counter(order(10, 2 * STEPS))
    assert Counter(fetched(whole, 0)) == Counter(order(0, 2 * STEPS))
    with np.load(folder / "end0.npz") as resumed, np.load(whole / "end0.npz") as expected:
        for name in expected.files:
            np.testing.assert_allclose(resumed[name], expected[name], atol=1e-5)
    assert not list(tmp_path.rglob("mirrorkit-*"))
