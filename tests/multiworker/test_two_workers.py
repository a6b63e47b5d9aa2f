"""Two workers give what two replicas of one process give, and know the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import replicated_training
from jobs import finished

pytestmark = pytest.mark.slow  # of what every change runs, .ci/run has two workers of one script
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, list[dict[str, Any]]]:
    """The folder of one run of two workers, what it printed, and what each worker found."""
    folder = tmp_path_factory.mktemp("run")
    job = finished(folder, HERE / "replicated_training.py", folder)
    return folder, job.text, [json.loads((folder / f"found{i}.json").read_text()) for i in (0, 1)]


def variables(folder: Path, worker: int = 0) -> list[np.ndarray]:
    with np.load(folder / f"variables{worker}.npz") as file:
        return [file[name] for name in file.files]


def test_both_workers_hold_the_same_bits_and_logs(run):
    folder, _, (zero, one) = run
    np.testing.assert_equal(variables(folder, 0), variables(folder, 1))
    rows = [zero["rows"], one["rows"]]
    own = ("rows", "seen")
    assert {k: v for k, v in zero.items() if k not in own} == {k: v for k, v in one.items() if k not in own}
    # In a custom loop: every row once, the chief's first.
    batches = [x.numpy() for x, _ in replicated_training.data()[1].dataset()]
    assert [a + b for a, b in zip(*rows, strict=True)] == [batch.tolist() for batch in batches]
    assert zero["all"] == [10.0, 11.0]
    assert zero["describe"] == "MultiWorkerMirroredStrategy, 2 replicas on CPU:0 of each of 2 workers"


def test_a_wish_of_one_worker_to_stop_stops_all(run):
    _, _, results = run
    assert [len(found["history"]["loss"]) for found in results] == [4, 4]


def test_a_batch_hook_of_one_worker_gives_all_calls_of_one_step(run):
    _, _, results = run
    assert [found["seen"] for found in results] == [[0, 1, 2, 3, 4], []]
    assert max(results[0]["calls"]) > 1  # without it


def test_only_the_chief_shows_progress_and_writes(run):
    folder, printed, _ = run
    assert sum("Epoch 1/9" in line for line in printed.splitlines()) == 1
    assert "worker 0 | Epoch 1/9" in printed
    assert len((folder / "log.csv").read_text().splitlines()) == 5  # a head line and four epochs
