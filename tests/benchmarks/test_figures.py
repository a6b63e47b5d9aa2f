"""Pages, pictures and stored runs say the same: examples/benchmarks/figures.py."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs/figures"


@pytest.fixture
def figures(script):
    return script("figures")


def test_pages_and_pictures_follow_from_the_stored_runs(figures):
    assert figures.wrong() == [], "python examples/benchmarks/figures.py --write"


def test_a_stored_run_says_where_and_how_it_was_measured(figures):
    assert {"cnn", "linear"} <= set(figures.stored())
    shown = "".join(figures.pages().values())
    for name in figures.stored():
        text = (FOLDER / f"{name}.json").read_text()
        run = json.loads(text)
        about = run["about"]
        assert {"processor", "cores", "memory_gib", "environment"} <= set(about), name
        assert {"python", "tensorflow", "keras"} <= set(about["versions"]), name
        assert re.match(r"python (-m mirrorkit|examples/benchmarks/\w+\.py) ", about["command"]), name
        assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d [+-]\d{4}$", about["time"]), name
        assert not re.search(r"/(tmp|home|root|work)/", text), f"{name} has paths of the machine"
        for row in run["rows"]:
            if "error" in row:
                assert row["error"] in shown, f"{name}: an error that no page shows"
                continue
            assert len(row["values"]) == row["n"] > 1, f"{name}: every measurement, and more than one"


def test_a_figure_that_was_changed_by_hand_on_a_page_is_seen(figures, copied_pages):
    page = "docs/speed-kinds.md"
    text = (copied_pages / page).read_text()
    figure = re.compile(r"\| (\d[\d,.]*)[ (]").search(text, text.index("<!-- figures: "))
    at = figure.start(1)
    (copied_pages / page).write_text(text[:at] + str((int(text[at]) + 1) % 10) + text[at + 1 :])
    assert figures.wrong(copied_pages) == [f"{page} has other figures than docs/figures"]
