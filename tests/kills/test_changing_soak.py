"""The judge of trainings whose number of workers changes, and the table of changing_soak.py, which is a command."""

from __future__ import annotations

import json
from pathlib import Path

import changing_soak
import numpy as np
import pytest
from changing_training import BATCH, problems

PAGES = Path(__file__).parents[2] / "docs"


def _result(weight: float, *, seen: float = 8) -> dict[str, np.ndarray]:
    return {"weights": np.full(2, weight), "count.seen": np.full(3, seen / BATCH)}


@pytest.mark.parametrize(
    ("weight", "seen", "wrong"),
    [
        (1.0 + 2e-6, 8, ""),
        (1.0 + 4e-6, 8, "4.00e-06 from one worker, where fixed numbers of workers differ by 1.00e-06"),
        (float("nan"), 8, "nan from one worker"),
        (1.0, 5, "examples were counted 5.00 to 5.00 times in 8 epochs"),
    ],
)
def test_what_is_wrong_with_an_end(weight: float, seen: float, wrong: str) -> None:
    fixed = [_result(1.0), _result(1.0 + 1e-6), _result(1.0 - 5e-7)]
    found = "; ".join(problems(_result(weight, seen=seen), fixed, 8))
    assert wrong in found
    assert bool(found) == bool(wrong)


def test_it_understands_the_line_of_the_launcher() -> None:
    page = (PAGES / "cluster.md").read_text()
    (line,) = (line for line in page.splitlines() if line.startswith("launch | ") and "from step" in line)
    found = changing_soak.WENT_ON.search(line)
    assert found is not None
    assert set(changing_soak.phases_of(found["phases"])) == set(changing_soak.PHASES)


def test_the_table_of_the_page_is_that_of_the_runs() -> None:
    page = (PAGES / "soak.md").read_text()
    table = changing_soak.as_markdown(json.loads(changing_soak.RUNS.read_text()))
    assert f"{changing_soak.BEGIN}\n\n{table}\n\n{changing_soak.FINISH}" in page
