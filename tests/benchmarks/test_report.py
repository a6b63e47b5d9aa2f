from __future__ import annotations

import json

from harness.chart import Chart
from harness.machine import about, in_a_line
from harness.report import Column, Report, figures, span, table

COLUMNS = (Column("name", "name"), Column("speed", "speed", ",.0f"), Column("share", "share", ".0%"))
ROWS = [{"name": "first", "speed": 12345.6, "values": [1.0, 2.0]}, {"name": "b", "error": "broken\nmore"}]


def test_a_table_aligns_words_left_and_figures_right_and_leaves_out_what_is_not_known():
    assert table(COLUMNS, ROWS).splitlines() == [
        "name    speed  share",
        "first  12,346",
        "b  broken",
    ]


def test_figures_are_median_best_and_spread():
    found = figures([10.0, 30.0, 20.0])
    assert found == {"values": [10.0, 30.0, 20.0], "n": 3, "median": 20.0, "best": 30.0, "spread": 1.0}
    assert figures([10.0, 30.0, 20.0], smaller_is_better=True) == found | {"best": 10.0}
    assert span(found) == (10.0, 30.0)
    assert figures([], "broken") == {"error": "broken"}
    assert span({"error": "broken"}) is None


def test_a_report_prints_everything_and_its_json_holds_every_measurement(tmp_path):
    report = Report("kind", "What was measured", COLUMNS, ROWS, Chart("t", [], {}), ["Mind this."], about())
    lines = str(report).splitlines()
    assert lines[0] == "What was measured"
    assert lines[1] == in_a_line(report.about)
    assert lines[-1] == "Mind this."
    written = json.loads(report.save_json(tmp_path / "figures.json").read_text())
    assert set(written) == {"benchmark", "title", "about", "rows", "notes"}
    assert written["rows"] == ROWS
