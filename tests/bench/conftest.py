"""Fixtures of the tests of benchmarks: run one as its command does, and check its rows."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from mirrorkit import __main__ as command


@pytest.fixture
def run_benchmark(tmp_path: Path) -> Callable[[str], tuple[dict[str, Any], str]]:
    """Run `python -m mirrorkit bench <arguments>`; returns the figures that it saved, and the title of its plot."""

    def run(arguments: str) -> tuple[dict[str, Any], str]:
        figures, plot = tmp_path / "figures.json", tmp_path / "plot.svg"
        assert command.main(["bench", *arguments.split(), "--json", str(figures), "--plot", str(plot)]) == 0
        title = ElementTree.parse(plot).getroot().find(".//{http://purl.org/dc/elements/1.1/}title")
        return json.loads(figures.read_text()), title.text

    return run


@pytest.fixture
def check_rows() -> Callable[[list[dict[str, Any]]], None]:
    """Check that every row was measured and that its figures fit together."""

    def check(rows: list[dict[str, Any]]) -> None:
        for row in rows:
            assert "error" not in row, row
            assert row["n"] == len(row["values"])
            assert min(row["values"]) > 0
            assert min(row["values"]) <= row["median"] <= row["best"] == max(row["values"])

    return check
