"""examples/benchmarks/against_peers.py on little work."""

from __future__ import annotations

import json

import pytest

WORK = "--net linear --replicas 2 --batch-size 64 --data synthetic --examples 640 --rounds 2"


@pytest.fixture
def against_peers(script):
    return script("against_peers")


@pytest.fixture
def run(against_peers, in_this_process, monkeypatch, tmp_path, capsys):
    """`run("--contenders loop")` gives the rows and what was printed."""

    def run(options):
        monkeypatch.setattr(against_peers, "Group", in_this_process)
        figures = tmp_path / "figures.json"
        command = ["against_peers.py", *WORK.split(), *options.split(), "--json", str(figures)]
        monkeypatch.setattr("sys.argv", command)
        against_peers.main()
        return json.loads(figures.read_text())["rows"], capsys.readouterr().out

    return run


@pytest.mark.slow  # four trainings compile
def test_against_peers_puts_the_loop_beside_others_and_names_who_cannot_run(check_rows, run):
    rows, printed = run("--epochs 8 --contenders loop-resident,hand,fit@1,loop-apart,loop@999")
    assert [row["contender"] for row in rows] == ["loop-resident", "hand", "fit@1", "loop-apart", "loop@999"]
    check_rows(rows[:4])
    for row in rows[:4]:
        assert row["n"] == 16  # rounds x epochs
        assert row["ratio"] == pytest.approx(rows[0]["best"] / row["best"])
    for row in rows[:3]:
        assert row["accuracy"] == pytest.approx(rows[0]["accuracy"], abs=0.05), "the same training"
    assert "999" in rows[4]["error"]
    assert "DeviceArgumentError" in printed
