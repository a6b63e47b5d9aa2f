from __future__ import annotations

import json

import pytest

from mirrorkit.bench.chart import Chart
from mirrorkit.bench.machine import about, in_a_line
from mirrorkit.bench.report import Column, Report, summary, table

COLUMNS = (Column("name", "name"), Column("speed", "speed", ",.0f"), Column("share", "share", ".0%"))
ROWS = [{"name": "first", "speed": 12345.6, "values": [1.0, 2.0]}, {"name": "b", "error": "broken\nmore"}]


def test_a_table_aligns_words_left_and_figures_right_and_leaves_out_what_is_not_known():
    assert table(COLUMNS, ROWS).splitlines() == [
        "name    speed  share",
        "first  12,346",
        "b  broken",
    ]


def test_summary_is_median_best_and_spread():
    assert summary([10.0, 30.0, 20.0]) == {"median": 20.0, "best": 30.0, "spread": 1.0}


def test_a_report_prints_everything_and_its_json_holds_every_measurement(tmp_path):
    report = Report("kind", "What was measured", COLUMNS, ROWS, Chart("t", [], {}), ["Mind this."], about())
    lines = str(report).splitlines()
    assert lines[0] == "What was measured"
    assert lines[1] == in_a_line(report.about)
    assert lines[-1] == "Mind this."
    written = json.loads(report.save_json(tmp_path / "figures.json").read_text())
    assert set(written) == {"benchmark", "title", "about", "rows", "notes"}
    assert written["rows"] == ROWS


def test_the_machine_is_known_with_what_sets_up_tensorflow(monkeypatch):
    others = {"TF_CONFIG", "TF_CPP_MIN_LOG_LEVEL", "TF_CLI_CONFIG_FILE"}
    for name in ("TF_ENABLE_ONEDNN_OPTS", *others):
        monkeypatch.setenv(name, "1")
    found = about()
    assert found["environment"]["TF_ENABLE_ONEDNN_OPTS"] == "1"
    assert not others & set(found["environment"])
    assert "; TF_ENABLE_ONEDNN_OPTS=1" in in_a_line(found)


def test_the_machine_is_known_with_its_versions():
    found = about("pytest", "no-such-distribution")
    assert found["cores"] >= 1
    assert found["versions"]["pytest"] == pytest.__version__
    assert "no-such-distribution" not in found["versions"]
    assert set(found) >= {"processor", "memory_gib", "gpus", "system", "command", "time"}
    assert "GiB" in in_a_line(found)
