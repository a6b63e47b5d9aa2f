"""examples/benchmarks/kinds_of_work.py on little work, its models, its tables and what it writes."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def kinds_of_work(script):
    return script("kinds_of_work")


@pytest.fixture
def run(kinds_of_work, in_this_process, monkeypatch, tmp_path, capsys):
    """`run("--kinds tabular")` gives what was written as JSON, and what was printed."""

    def run(options):
        written = tmp_path / "figures.json"
        monkeypatch.setattr("sys.argv", ["kinds_of_work.py", *options.split(), "--json", str(written)])
        kinds_of_work.main()
        return json.loads(written.read_text()), capsys.readouterr().out

    return run


@pytest.mark.slow  # the Loop's is trained
def test_a_contender_that_fails_has_its_error_in_place_of_figures(run, script, monkeypatch):
    def broken(self):
        raise ValueError("no such | thing\nand more")

    monkeypatch.setattr(script("kinds.contenders").Fit, "build", broken)
    written, printed = run("--kinds tabular --replicas 1 --rounds 2 --turns 1 --steps 2")
    (failed,) = (row for row in written["rows"] if row["contender"] == "fit")
    assert (failed["error"], "values" in failed) == ("ValueError: no such | thing", False)
    assert not [row for row in written["rows"] if "ratio" in row]
    assert printed.count("| ValueError: no such \\| thing |  |  |  |  |") == 3


def test_the_page_names_the_kinds_as_they_are(script, monkeypatch):
    models = script("kinds.models")
    page = (ROOT / "docs/speed-kinds.md").read_text()
    for name, kind in models.KINDS.items():
        assert f"| {name} | {kind.what} | {kind.batch:,} |" in page
    assert page.count(" |\n", 0, page.index("MobileNetV2 and")) == 1 + len(models.KINDS)
    assert models.ZIPF == 1.0
    assert round(models.KINDS["mlp-21m"].model().count_params() / 1e6) == 21
    nets = [kind.model() for kind in models.BATCH_NORM.values()]
    norms = [[layer for layer in net.layers if "synchronized" in layer.get_config()] for net in nets]
    assert [[layer.synchronized for layer in layers] for layers in norms] == [[True] * 20, [False] * 20]


@pytest.fixture
def copy(copied_pages, script, monkeypatch, kinds_of_work):
    """Pages and runs of the documentation, which --write may change."""
    figures, root = script("figures"), copied_pages
    monkeypatch.setattr(kinds_of_work, "FOLDER", root / "docs/figures")
    for name in ("pages", "write"):
        monkeypatch.setattr(kinds_of_work, name, partial(getattr(figures, name), root=root))
    return root


def test_write_makes_the_page_and_the_picture_from_the_run(run, copy, script, kinds_of_work, monkeypatch):
    values = {"step": [0.125, 0.25], "peak": [800.0, 900.0], "first": [2.0, 3.0], "checks": [0.5, 0.5]}
    monkeypatch.setattr(kinds_of_work, "measured", lambda jobs, options: {name: dict(values) for name in jobs})
    page = copy / "docs/speed-kinds.md"
    run(f"--kinds lstm --replicas 2 --write {page}")
    assert script("figures").wrong(copy) == []
    assert (
        "| lstm | 2 | 187.50 | 125.00 to 250.00 | 187.50 | 125.00 to 250.00 | 1.00 | 1.00 to 1.00 |" in page.read_text()
    )
    assert "--write" not in page.read_text()
