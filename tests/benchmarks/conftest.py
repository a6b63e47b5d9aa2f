"""Fixtures of the tests of examples/benchmarks: run one as its command does, and check its rows."""

from __future__ import annotations

import importlib
import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import gpu
import pytest
from harness import measure

from mirrorkit.errors import MirrorkitError

ROOT = Path(__file__).parents[2]


@pytest.fixture
def run_benchmark(
    tmp_path: Path, script: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], tuple[dict[str, Any], str]]:
    """Run a script, such as "gpu.py --minutes 2"; returns the figures that it saved, and the title of its plot."""

    def run(command: str) -> tuple[dict[str, Any], str]:
        figures, plot = tmp_path / "figures.json", tmp_path / "plot.svg"
        monkeypatch.setattr("sys.argv", [*command.split(), "--json", str(figures), "--plot", str(plot)])
        script(command.partition(".py")[0]).main()
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
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> type:
    """Let benchmarks start no processes, of which each would import TensorFlow: their objects live here.

    What travels is pickled, as on the way to a process; what was made of the same arguments is used again. Returns the
    class that plays `Group`; of several workers the first one plays alone.
    """
    made: dict[bytes, Any] = {}

    class Here:
        def __init__(self, target: str, *members: Any, timeout: float = 0.0) -> None:
            self.target, self.arguments = target, dict(members[0].arguments) if members else {}

        def __enter__(self) -> Here:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def call(self, method: str, **arguments: Any) -> Any:
            module, _, name = self.target.partition(":")
            subject = importlib.import_module(module)
            try:
                if name:
                    key = pickle.dumps((self.target, self.arguments))
                    if key not in made:
                        made[key] = getattr(subject, name)(**pickle.loads(key)[1])
                    subject = made[key]
                return pickle.loads(pickle.dumps(getattr(subject, method)(**arguments)))
            except Exception as error:
                raise MirrorkitError(f"{self.target} failed: {type(error).__name__}: {error}") from error

    monkeypatch.setattr(measure, "Group", Here)
    monkeypatch.setattr(gpu, "Group", Here)
    return Here


@pytest.fixture
def script() -> Callable[[str], Any]:
    """`script("figures")` imports a module of examples/benchmarks."""
    return importlib.import_module


@pytest.fixture
def copied_pages(tmp_path: Path, script: Callable[[str], Any]) -> Path:
    """A folder with the pages that have figures, and the stored runs, which `--write` may change."""
    root = tmp_path / "root"
    for path in script("figures").pages():
        (root / path.relative_to(ROOT)).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, root / path.relative_to(ROOT))
    shutil.copytree(ROOT / "docs/figures", root / "docs/figures")
    shutil.copy(ROOT / "docs/equivalence-table.md", root / "docs")  # which the picture of equality is made from
    return root
