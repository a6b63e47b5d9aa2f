"""examples/benchmarks/first_update.py: what it compares, and its tables."""

from __future__ import annotations

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
