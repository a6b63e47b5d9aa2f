"""Benchmarks that really run, as their commands do, on little work: every figure is there, and they fit together."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

import mirrorkit as mk
from mirrorkit import __main__ as command
from mirrorkit.errors import MirrorkitError

SCRIPT = Path(__file__).parents[2] / "examples/benchmarks/against_peers.py"


def run(tmp_path, arguments):
    """Run a benchmark; returns its figures and the picture."""
    figures, picture = tmp_path / "figures.json", tmp_path / "picture.svg"
    assert command.main(["bench", *arguments.split(), "--json", str(figures), "--picture", str(picture)]) == 0
    return json.loads(figures.read_text()), ElementTree.parse(picture).getroot()


def check(rows):
    for row in rows:
        assert "error" not in row, row
        assert row["n"] == len(row["values"])
        assert min(row["values"]) > 0
        assert min(row["values"]) <= row["median"] <= row["best"] == max(row["values"])


def test_collectives(tmp_path, capsys):
    arguments = "collectives --device cpu --replicas 2 --sizes 4096,65536 --implementations auto --repeats 2"
    written, _ = run(tmp_path, arguments)
    check(written["rows"])
    assert [(row["implementation"], row["bytes"], row["n"]) for row in written["rows"]] == [
        ("auto", 4096, 2),
        ("auto", 65536, 2),
    ]
    for row in written["rows"]:
        assert row["median"] == pytest.approx(row["bytes"] / row["microseconds"] / 1e3)
        assert row["bus"] == pytest.approx(row["median"])  # 2 (n - 1) / n is 1 for two
    printed = capsys.readouterr().out
    assert "All-reduce of float32 over 2 replicas, cpu" in printed
    assert "the speed of copies, not of a network" in printed
    assert written["about"]["versions"]["tensorflow"]


@pytest.mark.slow  # four processes
def test_collectives_of_workers(tmp_path, capsys):
    written, _ = run(tmp_path, "collectives --device workers --replicas 2 --sizes 4096,524288 --repeats 2")
    check(written["rows"])
    expected = [(name, size) for name in ("auto", "ring") for size in (4096, 524288)]
    assert [(row["implementation"], row["bytes"]) for row in written["rows"]] == expected
    assert "the speed of gRPC and of the loopback" in capsys.readouterr().out


SMALL = "--model linear --data synthetic --batch-size 64 --device cpu --replicas 2"


@pytest.mark.slow  # three processes compile
def test_scaling(tmp_path, capsys):
    written, picture = run(tmp_path, f"scaling {SMALL} --examples 1024 --repeats 2")
    check(written["rows"])
    assert [(row["scaling"], row["replicas"], row["global_batch_size"]) for row in written["rows"]] == [
        ("baseline", 1, 64),
        ("strong", 2, 64),
        ("weak", 2, 128),
    ]
    base, *others = written["rows"]
    for row in others:
        assert row["overhead"] == pytest.approx(base["median"] / row["median"] - 1)
    assert "share the same cores" in capsys.readouterr().out
    assert picture.findtext("{http://www.w3.org/2000/svg}title").startswith("Scaling of linear")


@pytest.mark.slow  # nine processes
@pytest.mark.timeout(900)
def test_strategies_reach_the_same_accuracy(tmp_path):
    written, _ = run(tmp_path, f"strategies {SMALL} --examples 8192 --epochs 3")
    rows = {row["strategy"]: row for row in written["rows"]}
    check(rows.values())
    processes = ("multi_worker", "parameter_server") if written["about"]["cores"] > 1 else ()
    assert tuple(rows) == ("one_device", "mirrored", "central_storage", *processes)
    accuracy = rows["one_device"]["accuracy"]
    assert accuracy > 0.3  # one class in ten is 0.1
    for kind, row in rows.items():
        assert row["accuracy"] == pytest.approx(accuracy, abs=0.1 if kind == "parameter_server" else 0.02)


@pytest.mark.slow  # five processes compile
def test_against_peers_puts_the_loop_beside_others_and_names_who_cannot_run(tmp_path):
    figures = tmp_path / "figures.json"
    arguments = "--net linear --replicas 2 --batch-size 64 --data synthetic --examples 1024 --rounds 2 --epochs 2"
    contenders = "--contenders loop-resident,hand,fit@1,loop-apart,loop@999"
    done = subprocess.run(
        [sys.executable, SCRIPT, *arguments.split(), *contenders.split(), "--json", str(figures)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(SCRIPT.parents[2]), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    rows = json.loads(figures.read_text())["rows"]
    assert [row["contender"] for row in rows] == ["loop-resident", "hand", "fit@1", "loop-apart", "loop@999"]
    check(rows[:4])
    for row in rows[:4]:
        assert row["n"] == 4  # rounds x epochs
        assert row["ratio"] == pytest.approx(rows[0]["best"] / row["best"])
        assert row["accuracy"] == pytest.approx(rows[0]["accuracy"], abs=0.05), "the same training"
    assert "999" in rows[4]["error"]
    assert "DeviceError" in done.stdout


@pytest.mark.slow  # a process for each
@pytest.mark.parametrize(("name", "compiles"), [("loop-xla", True), ("fit-xla", True), ("loop-resident", False)])
def test_xla_compiles_the_contenders_that_are_named_after_it(name, compiles, tmp_path):
    work = "--net linear --replicas 1 --batch-size 64 --data synthetic --examples 640 --rounds 1 --epochs 1"
    dump = tmp_path / "xla"
    done = subprocess.run(
        [sys.executable, SCRIPT, *work.split(), "--contenders", name],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(SCRIPT.parents[2]), "XLA_FLAGS": f"--xla_dump_to={dump}"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert bool(list(dump.glob("*before_optimizations.txt"))) == compiles


@pytest.mark.parametrize("name", ["fit", "loop-resident@1", "loop-workers", "loop-apart@2"])
def test_a_contender_with_onednn_differs_in_the_environment_alone(name, monkeypatch):
    monkeypatch.delenv("TF_ENABLE_ONEDNN_OPTS", raising=False)
    monkeypatch.syspath_prepend(SCRIPT.parent)
    against_peers = importlib.import_module("against_peers")
    options = argparse.Namespace(device="cpu", replicas=4)
    plain, with_onednn = (against_peers.members(written, options, {}) for written in (name, f"{name}+onednn"))
    assert len(plain) == len(with_onednn)
    for one, other in zip(plain, with_onednn, strict=True):
        assert set(other.environment) - set(one.environment) == {"TF_ENABLE_ONEDNN_OPTS"}
        assert other.environment["TF_ENABLE_ONEDNN_OPTS"] == "1"
        assert (other.arguments, other.core) == (one.arguments, one.core)


@pytest.mark.parametrize("arguments", [["bench"], ["bench", "swimming"], ["bench", "scaling", "--replicas", "x"]])
def test_mistakes_are_exit_code_2_and_name_what_there_is(arguments, capsys):
    with pytest.raises(SystemExit, match="2"):
        command.main(arguments)
    assert "usage: python -m mirrorkit bench" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--json", "--picture"])
@pytest.mark.parametrize("place", ["nowhere/figures", "."])
def test_a_file_that_cannot_be_written_is_told_before_the_measurement(option, place, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("mirrorkit.bench.collectives", None)
    assert command.main(["bench", "collectives", option, place]) == 1
    assert capsys.readouterr().err.startswith(f"mirrorkit bench: '{place}' cannot be written: name a file in a folder")


def test_a_picture_of_a_kind_that_cannot_be_drawn_is_told_before_the_measurement(capsys, monkeypatch):
    monkeypatch.setattr("mirrorkit.bench.collectives", None)
    assert command.main(["bench", "collectives", "--picture", "figures.doc"]) == 1
    assert "'figures.doc' cannot be drawn: name a file that ends in .png or .svg" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (["--picture", "figures.doc"], "'figures.doc' cannot be drawn"),
        (["--json", "nowhere/figures"], "'nowhere/figures' cannot be written"),
        (["--contenders", "fit,swimmer"], "unknown contenders swimmer"),
    ],
)
def test_mistakes_beside_peers_are_told_before_the_measurement(mistake, message, capsys, monkeypatch):
    monkeypatch.syspath_prepend(SCRIPT.parent)
    against_peers = importlib.import_module("against_peers")
    monkeypatch.setattr("sys.argv", ["against_peers.py", *mistake])
    with pytest.raises(SystemExit, match="2"):
        against_peers.main()
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("epochs", [0, 1.5])
def test_epochs_that_are_none_are_named_as_they_were_asked_for(epochs):
    with pytest.raises(MirrorkitError, match=f"epochs={epochs} was asked for"):
        mk.bench.strategies(epochs=epochs)


def test_what_cannot_be_measured_is_one_message(capsys):
    assert command.main(["bench", "scaling", "--device", "cpu", "--replicas", "0"]) == 1
    assert capsys.readouterr().err.startswith("mirrorkit bench: Replicas [0] were asked for")
