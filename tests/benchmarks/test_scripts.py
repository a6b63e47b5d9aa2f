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


PEERS = "--net linear --replicas 2 --batch-size 64 --data synthetic --examples 640 --rounds 2 --epochs 2"
WHERE = ("one device", "2 replicas with a layout", "4 sharded")  # of model_memory


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "rows", "smaller"),
    [
        (f"against_peers {PEERS} --contenders loop-resident,hand,fit@1", 3, {}),
        ("input_pipeline --examples 128 --rounds 1", 5, {"STEP": 0.0, "SIZE": 32}),
        ("epochs_memory --epochs 20", 10, {}),
        ("kinds_of_work --kinds tabular --replicas 2 --rounds 2 --turns 2 --epochs 1 --steps 2", 8, {}),
        ("first_batch --replicas 2 --nets mnist_cnn --rounds 1", 5, {"BATCH": 8, "EPOCH": 3}),
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
