"""Workers wait for each other: at barriers, and for a file that the chief exports."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from launching import launched

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("run")
    launched(HERE / "waiting_workers.py", folder, folder=folder)
    return folder, [json.loads((folder / f"found{i}.json").read_text()) for i in (0, 1)]


@pytest.mark.slow  # two workers
def test_a_worker_waits_at_a_barrier_for_one_that_comes_later(run):
    _, found = run
    assert [worker["prepared"] for worker in found] == [True, True]


@pytest.mark.slow
def test_the_log_says_after_a_while_what_a_worker_waits_for(run):
    _, (early, late) = run
    (said,) = early["said"]
    assert "Waiting for the other workers at the barrier 'late'" in said
    assert late["said"] == []


@pytest.mark.slow
def test_barriers_of_other_names_are_named_on_every_worker(run):
    for worker in run[1]:
        assert "the barrier 'of worker 0' on worker 0 and the barrier 'of worker 1' on worker 1" in worker["different"]


@pytest.mark.slow
def test_export_returns_on_every_worker_when_the_file_is_whole(run):
    assert [worker["exported"] for worker in run[1]] == [True, True]


@pytest.mark.slow
def test_an_export_that_fails_on_the_chief_fails_on_all(run):
    _, (chief, other) = run
    assert chief["failed"].startswith("Nothing could be written to")
    assert other["failed"].startswith("The chief could not export")


@pytest.mark.slow
def test_a_callback_of_ones_own_may_be_the_chiefs_alone(run):
    folder, _ = run
    assert sorted(path.name for pattern in ("own*", "chiefs*") for path in folder.glob(pattern)) == [
        "chiefs0",
        "own0",
        "own1",
    ]


ENDS_EARLY = """
import mirrorkit as mk
strategy = mk.strategy.create("multi_worker", devices="cpu")
mk.strategy.of_all_workers(strategy, 1)
if mk.strategy.is_chief(strategy):
    mk.strategy.of_all_workers(strategy, 2)
"""


@pytest.mark.slow
def test_a_worker_that_has_exited_is_named_where_numbers_are_exchanged(tmp_path):
    (tmp_path / "script.py").write_text(ENDS_EARLY)
    done = launched("script.py", folder=tmp_path, check=False)
    assert done.returncode == 1
    assert re.search(r"ClusterError: worker 1 \(\S+\) is gone, and the other workers cannot go on", done.stderr)
