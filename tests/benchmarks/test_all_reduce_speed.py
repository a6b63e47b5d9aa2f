"""examples/benchmarks/all_reduce.py: GB/s of all-reduces: short real runs, and refusals."""

from __future__ import annotations

import pytest
from all_reduce import collectives

from mirrorkit.errors import StrategyError


@pytest.mark.slow
@pytest.mark.usefixtures("in_this_process")
def test_collectives(run_benchmark, check_rows, capsys):
    arguments = "all_reduce.py --devices cpu --replicas 2 --sizes 4096,65536 --implementations auto --repeats 2"
    written, _ = run_benchmark(arguments)
    check_rows(written["rows"])
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


@pytest.mark.slow  # two processes
def test_collectives_of_workers(run_benchmark, check_rows, capsys):
    arguments = "all_reduce.py --devices workers --replicas 2 --sizes 4096,524288 --implementations auto --repeats 2"
    written, _ = run_benchmark(arguments)
    check_rows(written["rows"])
    assert [(row["implementation"], row["bytes"]) for row in written["rows"]] == [("auto", 4096), ("auto", 524288)]
    assert "the speed of gRPC and of the loopback" in capsys.readouterr().out


def test_what_cannot_be_measured_is_refused_before_anything_starts():
    with pytest.raises(StrategyError, match="2 replicas or more"):
        collectives(replicas=1)
    with pytest.raises(StrategyError, match="carrier_pigeon"):
        collectives(implementations=["carrier_pigeon"])
    with pytest.raises(StrategyError, match="for 'workers' the implementations auto, ring"):
        collectives(devices="workers", implementations=["one_device"])
