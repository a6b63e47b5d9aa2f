"""The scripts of examples/benchmarks on little work, and what they refuse."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from all_reduce import collectives

from mirrorkit.errors import StrategyError

# --- the other scripts of examples/benchmarks on little work


@pytest.mark.slow  # five processes
def test_workers_beside_independent_jobs(script, tmp_path):
    arguments = ["--images", "256", "--side", "16", "--batch-size", "64", "--rounds", "2"]
    done = subprocess.run(
        [sys.executable, script("input_bound").__file__, *arguments],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    speeds = dict(re.findall(r"^(workers|apart) +([\d,]+) ", done.stdout, re.MULTILINE))
    assert set(speeds) == {"workers", "apart"}
    assert all(int(speed.replace(",", "")) > 0 for speed in speeds.values())
    assert re.search(r"workers / apart: median \d\.\d+, .* n = 2", done.stdout)


WHERE = ("one device", "2 replicas with a layout", "4 sharded")  # of model_memory


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "rows", "smaller"),
    [
        ("input_pipeline --examples 128 --rounds 1", 5, {"STEP": 0.0, "SIZE": 32}),
        ("epochs_memory --epochs 20", 10, {}),
        ("kinds_of_work --kinds tabular --replicas 2 --rounds 2 --turns 2 --epochs 1 --steps 2", 8, {}),
        ("first_batch --replicas 1 --nets mnist_cnn --rounds 1", 5, {"BATCH": 8, "EPOCH": 3}),
        ("model_memory --width 32 --batch-size 32 --rounds 1", 5, {"HALF": 1, "WHERE": WHERE}),
    ],
    ids=lambda value: value.split()[0] if isinstance(value, str) else "",
)
def test_a_script_writes_a_row_for_each_thing_that_it_measures(
    command, rows, smaller, script, in_this_process, monkeypatch, tmp_path
):
    name, *arguments = command.split()
    benchmark = script(name)
    for constant, value in {**smaller, "Group": in_this_process}.items():
        monkeypatch.setattr(benchmark, constant, value, raising=False)
    if name == "model_memory":  # this process has been larger before
        train = benchmark.Peak.train
        monkeypatch.setattr(benchmark.Peak, "train", lambda peak: 1.0 + train(peak))
    figures = tmp_path / "figures.json"
    monkeypatch.setattr("sys.argv", [f"{name}.py", *arguments, "--json", str(figures)])
    benchmark.main()
    written = json.loads(figures.read_text())
    assert written["benchmark"] == name
    assert len(written["rows"]) == rows


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("against_peers --plot figures.doc", "'figures.doc' cannot be drawn"),
        ("against_peers --json nowhere/figures", "'nowhere/figures' cannot be written"),
        ("against_peers --contenders fit,swimmer", "unknown contenders swimmer"),
        ("kinds_of_work --replicas 0", "whole number"),
        ("kinds_of_work --steps 0", "steps=0 was asked for"),
        ("kinds_of_work --write nowhere.md", "blocks kinds-step"),
    ],
)
def test_mistakes_are_told_before_the_measurement(command, message, script, capsys, monkeypatch):
    name, *arguments = command.split()
    monkeypatch.setattr("sys.argv", [f"{name}.py", *arguments])
    with pytest.raises(SystemExit, match="2"):
        script(name).main()
    assert message in capsys.readouterr().err


# --- examples/benchmarks/against_peers.py on little work


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


# --- examples/benchmarks/all_reduce.py: GB/s of all-reduces: short real runs, and refusals


@pytest.mark.slow
@pytest.mark.parametrize(
    ("devices", "sizes", "note"),
    [
        ("cpu", [4096, 65536], "the speed of copies, not of a network"),
        ("workers", [4096, 524288], "the speed of gRPC and of the loopback"),
    ],
)
def test_collectives(devices, sizes, note, run_benchmark, check_rows, capsys, request):
    if devices == "cpu":
        request.getfixturevalue("in_this_process")
    few = f"--sizes {sizes[0]},{sizes[1]} --implementations auto --repeats 2"
    written, _ = run_benchmark(f"all_reduce.py --devices {devices} --replicas 2 {few}")
    check_rows(written["rows"])
    assert [(row["implementation"], row["bytes"], row["n"]) for row in written["rows"]] == [
        ("auto", n, 2) for n in sizes
    ]
    for row in written["rows"]:
        assert row["median"] == pytest.approx(row["bytes"] / row["microseconds"] / 1e3)
        assert row["bus"] == pytest.approx(row["median"])  # 2 (n - 1) / n is 1 for two
    assert note in capsys.readouterr().out


def test_what_cannot_be_measured_is_refused_before_anything_starts():
    with pytest.raises(StrategyError, match="2 replicas or more"):
        collectives(replicas=1)
    with pytest.raises(StrategyError, match="carrier_pigeon"):
        collectives(implementations=["carrier_pigeon"])
    with pytest.raises(StrategyError, match="auto, ring"):
        collectives(devices="workers", implementations=["one_device"])


# --- what two workers send each other in a step, counted: the rows of tables that a batch looks up, not the tables


@pytest.mark.slow
def test_workers_send_rows_and_not_tables(script):
    """1,024 examples look up 2,048 of 1,200,000 rows of 32 numbers: 0.3 MB, where the tables have 154.

    The smaller table has 24 MiB: in one process Adam would be given its dense gradient.
    """
    benchmark, sizes = script("bytes_between_workers"), script("kinds.models")
    tables = (sizes.USERS + sizes.ITEMS) * sizes.FEATURES * 4
    (dense,) = benchmark.measured("dense", "adagrad", steps=2, epochs=1)
    assert min(dense) > tables, "what is sent is not counted"
    for optimizer in ("adagrad", "adam"):
        (rows,) = benchmark.measured("rows", optimizer, steps=2, epochs=1)
        assert all(0.2e6 < one <= 1e6 for one in rows), (optimizer, rows)


# --- examples/benchmarks/first_update.py: its table, of measurements that are made up


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
