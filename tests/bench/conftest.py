"""Fixtures of the tests of benchmarks: run one as its command does, and check its rows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from mirrorkit import __main__ as command

BENCHMARKS = Path(__file__).parents[2] / "examples/benchmarks"


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


@pytest.fixture
def run_script(tmp_path: Path) -> Callable[..., str]:
    """`run_script("overheads.py --rounds 2", NAME=value)` runs a script of examples/benchmarks; returns its output."""

    def run(command: str, **environment: str) -> str:
        script, *arguments = command.split()
        done = subprocess.run(
            [sys.executable, BENCHMARKS / script, *arguments],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(BENCHMARKS.parents[1]), "TMPDIR": str(tmp_path), **environment},
            capture_output=True,
            text=True,
            timeout=280,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    return run
