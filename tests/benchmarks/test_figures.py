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


def change(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_a_figure_that_was_changed_by_hand_on_a_page_is_seen(figures, copied_pages):
    page = "docs/speed-kinds.md"
    text = (copied_pages / page).read_text()
    figure = re.compile(r"\| (\d[\d,.]*)[ (]").search(text, text.index("<!-- figures: "))
    at = figure.start(1)
    (copied_pages / page).write_text(text[:at] + str((int(text[at]) + 1) % 10) + text[at + 1 :])
    assert figures.wrong(copied_pages) == [f"{page} has other figures than docs/figures"]


def test_a_run_that_was_changed_by_hand_is_seen_though_its_median_stays(figures, copied_pages):
    path = copied_pages / "docs/figures/cnn.json"
    run = json.loads(path.read_text())
    values = run["rows"][0]["values"]
    values[values.index(sorted(values)[1])] *= 1.0001
    path.write_text(json.dumps(run))
    pages = ["docs/index.md", "docs/speed-figures.md", "docs/speed.md"]
    pictures = ["cnn", "readme"]
    assert figures.wrong(copied_pages) == [
        *(f"{page} has other figures than docs/figures" for page in pages),
        *(f"docs/figures/{name}.svg was drawn from other figures" for name in pictures),
    ]


def test_a_picture_that_was_changed_by_hand_is_seen(figures, copied_pages):
    change(copied_pages / "docs/figures/readme.svg", '<text style="', '<text style="1')
    assert figures.wrong(copied_pages) == ["docs/figures/readme.svg was changed by hand"]


def test_blocks_and_pictures_that_are_missing_are_named(figures, copied_pages):
    (copied_pages / "docs/figures/linear.svg").unlink()
    change(copied_pages / "docs/speed.md", "<!-- end of figures -->", "")
    change(copied_pages / "docs/speed-figures.md", "figures: records -->", "figures: record -->")
    pages = [(copied_pages / f"docs/{page}.md").read_text() for page in ("speed-figures", "speed")]
    names, of_speed = ([found["name"] for found in figures.BLOCK.finditer(page)] for page in pages)
    why = "has a block without an end, or one that nothing makes"
    assert figures.wrong(copied_pages) == [
        f"docs/speed-figures.md {why}: {names}",
        f"docs/speed.md {why}: {of_speed}",
        "records stands on no page",
        "gpu-kinds stands on no page",
        "docs/figures/linear.svg is missing, or was not drawn by this command",
    ]
    assert "record" in names
