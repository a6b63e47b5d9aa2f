"""examples/benchmarks/all_reduce.py: GB/s of all-reduces: short real runs, and refusals."""

from __future__ import annotations

import pytest
from all_reduce import collectives

from mirrorkit.errors import StrategyError


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
