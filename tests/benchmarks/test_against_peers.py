"""examples/benchmarks/against_peers.py on little work."""

from __future__ import annotations

import argparse
import json

import pytest
from harness.processes import Member
from harness.topology import Topology

import mirrorkit as mk

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


@pytest.mark.slow
def test_first_steps_are_seconds_of_processes_that_did_nothing_before(run):
    (row,), _ = run("--first-step --contenders loop@1")
    assert (row["n"], row["ratio"]) == (2, 1.0)
    assert row["best"] == min(row["values"]) > 0


@pytest.mark.parametrize(("name", "compiles"), [("loop-xla", True), ("fit-xla", True), ("loop-resident", False)])
def test_xla_compiles_the_contenders_that_are_named_after_it(name, compiles, script, monkeypatch, tmp_path):
    asked = []
    loop = mk.train.Loop
    monkeypatch.setattr(mk.train, "Loop", lambda *given, **options: asked.append(options) or loop(*given, **options))
    script("contenders.preparation").Preparation().write(str(tmp_path), "synthetic", None, 64, False)
    work = {"net": "linear", "batch_size": 64, "plain": False, "folder": str(tmp_path), "replicas": 1}
    contender = script("contenders").make(name, work, kind="one_device", devices="cpu:1")
    contender.build()
    options = asked[0] if asked else {"jit_compile": contender.model.jit_compile}
    assert options["jit_compile"] == compiles
    assert not asked or isinstance(contender.train_data, mk.data.Resident), "XLA cannot read data from the host"


@pytest.mark.parametrize("name", ["fit", "loop-resident@1", "loop-workers", "loop-apart@2"])
def test_a_contender_with_onednn_differs_in_the_environment_alone(name, against_peers, monkeypatch):
    monkeypatch.delenv("TF_ENABLE_ONEDNN_OPTS", raising=False)
    options = argparse.Namespace(device="cpu", replicas=4)
    plain, with_onednn = (against_peers.job(written, options, {}).members for written in (name, f"{name}+onednn"))
    assert len(plain) == len(with_onednn)
    for one, other in zip(plain, with_onednn, strict=True):
        assert set(other.environment) - set(one.environment) == {"TF_ENABLE_ONEDNN_OPTS"}
        assert other.environment["TF_ENABLE_ONEDNN_OPTS"] == "1"
        assert (other.arguments, other.core) == (one.arguments, one.core)


def test_processes_apart_train_each_for_itself_on_a_core_of_its_own():
    first, second = Topology("apart", "workers", 2).members(x=1)
    assert (first.arguments, first.core) == ({"x": 1, "kind": "one_device", "devices": "cpu:1"}, 0)
    assert second == Member(first.arguments, first.environment, core=1)


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (["--plot", "figures.doc"], "'figures.doc' cannot be drawn"),
        (["--json", "nowhere/figures"], "'nowhere/figures' cannot be written"),
        (["--contenders", "fit,swimmer"], "unknown contenders swimmer"),
    ],
)
def test_mistakes_beside_peers_are_told_before_the_measurement(mistake, message, against_peers, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["against_peers.py", *mistake])
    with pytest.raises(SystemExit, match="2"):
        against_peers.main()
    assert message in capsys.readouterr().err
