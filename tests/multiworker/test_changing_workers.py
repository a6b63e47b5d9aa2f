"""Jobs whose number of workers changes, on real digits: nothing is lost, nothing is trained on twice."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from changing_training import BATCH
from jobs import Process, launched

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not os.environ.get("MIRRORKIT_DATA"), reason="needs MNIST in $MIRRORKIT_DATA"),
]
SCRIPT = Path(__file__).with_name("changing_training.py")
Run = Callable[..., tuple[dict[str, np.ndarray], Process]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Train in a folder of its own; gives what `changing_training.py` has saved at the end."""

    def run(*options: object, at: tuple[str, ...] = (), room: int = 3) -> tuple[dict[str, np.ndarray], Process]:
        folder = tmp_path_factory.mktemp("run")
        (folder / "room").write_text(str(room))
        with launched(folder, *options, SCRIPT, folder, "--at", *at) as job:
            assert job.end(300) == 0, job.text[-8000:]
        with np.load(folder / "end.npz") as file:
            return dict(file), job

    return run


@pytest.fixture(scope="module")
def undisturbed(run: Run) -> list[dict[str, np.ndarray]]:
    """The results of 1, 2 and 3 workers."""
    return [run("--workers", workers)[0] for workers in (1, 2, 3)]


def apart(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> float:
    assert one.keys() == other.keys()
    return max(float(np.max(np.abs(one[name] - other[name]))) for name in one)


def test_a_worker_lost_two_added_one_taken_away(run: Run, undisturbed: list[dict[str, np.ndarray]]) -> None:
    options = ("--workers", "1:3", "--slots", "room", "--max-restarts", 1)
    changes = ("100:kill:1", "200:room:3", "300:room:2")
    found, job = run(*options, at=changes, room=2)
    went_on = re.findall(r"launch \| (\d) workers? from step (\d+) on, .*; (\d+) steps repeated", job.text)
    assert [int(workers) for workers, *_ in went_on] == [1, 3, 2]
    assert int(went_on[0][1]) == 90  # the newest checkpoint before the loss
    assert all(int(repeated) == 0 for *_, repeated in went_on[1:])  # these saved first
    np.testing.assert_allclose(found["count.seen"] * BATCH, 2, atol=1e-3)  # each example once in each of two epochs
    control = max(apart(one, undisturbed[0]) for one in undisturbed[1:])
    assert 0 < apart(found, undisturbed[0]) <= 3 * control


def test_a_worker_that_is_replaced_changes_no_bit(run: Run, undisturbed: list[dict[str, np.ndarray]]) -> None:
    found, _ = run("--workers", "1:2", "--max-restarts", 1, at=("100:kill:0",))
    assert apart(found, undisturbed[1]) == 0
    assert apart(found, undisturbed[0]) > 0
