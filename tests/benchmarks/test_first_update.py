"""examples/benchmarks/first_update.py: its table, of measurements that are made up."""

from __future__ import annotations

SECONDS = {"first": [3.0, 2.0, 4.0], "checks": [1.0, 0.5, 1.0], "tracing": [0.75, 0.5, 0.5], "step": [0.125] * 3}


def test_the_table_has_the_ratio_without_the_checks(script, monkeypatch, capsys):
    """A contender other than the first takes twice the time."""
    first_update = script("first_update")

    def measured(jobs, options):
        times = zip(jobs, (1, 2), strict=True)
        return {name: {what: [by * one for one in of] for what, of in SECONDS.items()} for name, by in times}

    monkeypatch.setattr(first_update, "measured", measured)
    monkeypatch.setattr("sys.argv", ["first_update.py", "--nets", "mnist_cnn", "--replicas", "2", "--layers"])
    first_update.main()
    printed = capsys.readouterr().out
    ratios = "0.50 | 0.50 to 0.50 | 1.00 | 0.50 | 0.33 | 0.33 to 0.38 |"
    assert f"| mnist_cnn | 2 | 3.00 | 2.00 to 4.00 | 6.00 | 4.00 to 8.00 | {ratios}" in printed
    assert "n = 3 processes each" in printed
    assert printed.count("Not measured by") == 1
