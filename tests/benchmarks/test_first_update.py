"""examples/benchmarks/first_update.py: what it compares, its tables, and what it writes."""

from __future__ import annotations

import json
from functools import partial

import pytest

SECONDS = {"first": [3.0, 2.0, 4.0], "checks": [1.0, 0.5, 1.0], "tracing": [0.75, 0.5, 0.5], "step": [0.125] * 3}


@pytest.fixture
def first_update(script, monkeypatch):
    """The script; what it measures is made up: a contender other than the first takes twice the time."""
    found, asked = script("first_update"), []

    def measured(jobs, options):
        asked.append({name: (job.target, job.arguments, job.layout) for name, job in jobs.items()})
        times = zip(jobs, (1, 2), strict=True)
        return {name: {what: [by * one for one in of] for what, of in SECONDS.items()} for name, by in times}

    monkeypatch.setattr(found, "measured", measured)
    found.asked = asked
    return found


@pytest.fixture
def run(first_update, monkeypatch, capsys):
    """`run("--rounds 3")` gives what was printed."""

    def run(options):
        monkeypatch.setattr("sys.argv", ["first_update.py", *options.split()])
        first_update.main()
        return capsys.readouterr().out

    return run


def test_nets_are_beside_fit_and_synchronized_layers_beside_plain(run, first_update, script):
    run("--nets mnist_cnn --replicas 1 2 --layers 8 16 --beside-plain 2 4")
    works = [{name: arguments["work"] for name, (_, arguments, _) in jobs.items()} for jobs in first_update.asked]
    beside_plain = [{"synchronized": f"synchronized, {n}", "plain": f"plain, {n}"} for n in (8, 8, 16, 16)]
    assert works == [*[{"loop": "mnist_cnn", "fit": "mnist_cnn"}] * 2, *beside_plain]
    targets = [[target.partition(":")[2] for target, *_ in jobs.values()] for jobs in first_update.asked]
    assert targets == [*[["Loop", "Fit"]] * 2, *[["Loop", "Loop"]] * 4]
    replicas = [{layout.replicas for *_, layout in jobs.values()} for jobs in first_update.asked]
    assert replicas == [{1}, {2}, {2}, {4}, {2}, {4}]
    models = script("kinds.models")
    assert {*models.FIRST, *models.DEPTHS} >= {work for jobs in works for work in jobs.values()}


def test_the_table_has_the_ratio_without_the_checks(run):
    printed = run("--nets mnist_cnn --replicas 2 --layers")
    ratios = "0.50 | 0.50 to 0.50 | 1.00 | 0.50 | 0.33 | 0.33 to 0.38 |"
    assert f"| mnist_cnn | 2 | 3.00 | 2.00 to 4.00 | 6.00 | 4.00 to 8.00 | {ratios}" in printed
    assert "n = 3 processes each" in printed
    assert printed.count("Not measured by") == 1


def test_the_table_of_synchronized_layers_has_updates_traces_and_steps(run):
    printed = run("--nets --layers 16")
    for line in ("first update, s | 3.00", "of it tracing, s | 0.50", "ms of a step | 125.00"):
        assert f"| 16 layers | 2 | {line} | " in printed
    assert printed.count("| 0.50 | 0.50 to 0.50 |") == 3


def test_a_contender_that_fails_has_its_error_in_place_of_figures(run, first_update, monkeypatch):
    measured = first_update.measured
    failed = {"fit": "ValueError: no"}
    monkeypatch.setattr(first_update, "measured", lambda jobs, options: {**measured(jobs, options), **failed})
    assert "| mnist_cnn | 2 | 3.00 | 2.00 to 4.00 | ValueError: no |" in run("--nets mnist_cnn --replicas 2 --layers")


def test_the_nets_are_as_deep_as_they_say(script):
    models = script("kinds.models")
    for layers in models.LAYERS[:2]:
        for name in models.BATCH_NORM:
            net = models.DEPTHS[f"{name}, {layers}"].model()
            norms = [layer for layer in net.layers if "synchronized" in layer.get_config()]
            assert [layer.synchronized for layer in norms] == [name == "synchronized"] * layers
            assert net.layers[-3].output.shape == (None, 8, 8, 64)


def test_write_makes_the_page_from_the_run(run, first_update, script, monkeypatch, copied_pages):
    figures, root = script("figures"), copied_pages
    monkeypatch.setattr(first_update, "FOLDER", root / "docs/figures")
    monkeypatch.setattr(first_update, "write", partial(figures.write, root=root))
    monkeypatch.setattr(script("kinds_of_work"), "pages", partial(figures.pages, root=root))
    page = root / "docs/speed-details.md"
    run(f"--nets mnist_cnn --replicas 2 --layers 8 --write {page}")
    assert figures.wrong(root) == []
    assert "| 8 layers | 2 | first update, s | 3.00 |" in page.read_text()
    assert len(json.loads((root / "docs/figures/first-update.json").read_text())["rows"]) == 4 * 4


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        ("--replicas 0", "each must be a whole number"),
        ("--beside-plain 0", "each must be a whole number"),
        ("--rounds 0", "rounds=0 was asked for"),
        ("--write docs/why.md", "no page of docs/ that has one of the blocks first-update"),
    ],
)
def test_mistakes_are_told_before_the_measurement(mistake, message, run, capsys):
    with pytest.raises(SystemExit, match="2"):
        run(mistake)
    assert message in capsys.readouterr().err
