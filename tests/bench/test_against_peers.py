"""examples/benchmarks/against_peers.py on little work."""

from __future__ import annotations

import argparse
import importlib
import json
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples/benchmarks"


@pytest.mark.slow  # five processes compile
def test_against_peers_puts_the_loop_beside_others_and_names_who_cannot_run(check_rows, run_script, tmp_path):
    work = "--net linear --replicas 2 --batch-size 64 --data synthetic --examples 4096 --rounds 2 --epochs 2"
    contenders = "--contenders loop-resident,hand,fit@1,loop-apart,loop@999"
    figures = tmp_path / "figures.json"
    printed = run_script(f"against_peers.py {work} {contenders} --json {figures}")
    rows = json.loads(figures.read_text())["rows"]
    assert [row["contender"] for row in rows] == ["loop-resident", "hand", "fit@1", "loop-apart", "loop@999"]
    check_rows(rows[:4])
    for row in rows[:4]:
        assert row["n"] == 4  # rounds x epochs
        assert row["ratio"] == pytest.approx(rows[0]["best"] / row["best"])
        assert row["accuracy"] == pytest.approx(rows[0]["accuracy"], abs=0.05), "the same training"
    assert "999" in rows[4]["error"]
    assert "DeviceArgumentError" in printed


@pytest.mark.slow  # a process for each
@pytest.mark.parametrize(("name", "compiles"), [("loop-xla", True), ("fit-xla", True), ("loop-resident", False)])
def test_xla_compiles_the_contenders_that_are_named_after_it(name, compiles, run_script, tmp_path):
    work = "--net linear --replicas 1 --batch-size 64 --data synthetic --examples 640 --rounds 1 --epochs 1"
    dump = tmp_path / "xla"
    run_script(f"against_peers.py {work} --contenders {name}", XLA_FLAGS=f"--xla_dump_to={dump}")
    assert bool(list(dump.glob("*before_optimizations.txt"))) == compiles


@pytest.mark.parametrize("name", ["fit", "loop-resident@1", "loop-workers", "loop-apart@2"])
def test_a_contender_with_onednn_differs_in_the_environment_alone(name, monkeypatch):
    monkeypatch.delenv("TF_ENABLE_ONEDNN_OPTS", raising=False)
    monkeypatch.syspath_prepend(FOLDER)
    against_peers = importlib.import_module("against_peers")
    options = argparse.Namespace(device="cpu", replicas=4)
    plain, with_onednn = (against_peers.members(written, options, {}) for written in (name, f"{name}+onednn"))
    assert len(plain) == len(with_onednn)
    for one, other in zip(plain, with_onednn, strict=True):
        assert set(other.environment) - set(one.environment) == {"TF_ENABLE_ONEDNN_OPTS"}
        assert other.environment["TF_ENABLE_ONEDNN_OPTS"] == "1"
        assert (other.arguments, other.core) == (one.arguments, one.core)


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (["--plot", "figures.doc"], "'figures.doc' cannot be drawn"),
        (["--json", "nowhere/figures"], "'nowhere/figures' cannot be written"),
        (["--contenders", "fit,swimmer"], "unknown contenders swimmer"),
    ],
)
def test_mistakes_beside_peers_are_told_before_the_measurement(mistake, message, capsys, monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    against_peers = importlib.import_module("against_peers")
    monkeypatch.setattr("sys.argv", ["against_peers.py", *mistake])
    with pytest.raises(SystemExit, match="2"):
        against_peers.main()
    assert message in capsys.readouterr().err
