"""Scaling and strategies: arithmetic on measurements that are made up, refusals, and short real runs."""

from __future__ import annotations

import pytest
from all_reduce import collectives
from harness import measure
from harness.topology import Hardware
from training_speed import scaling, strategies

from mirrorkit.errors import MirrorkitError

SMALL = "--model linear --data synthetic --global-batch-size 64 --devices cpu --replicas 2"


BOTH = [scaling, strategies]


@pytest.mark.parametrize(
    ("benchmarks", "arguments", "message"),
    [
        ([scaling], {"devices": "tpu"}, "'tpu' .*'workers'"),
        ([scaling], {"replicas": [0, 2]}, "whole number"),
        ([*BOTH, collectives], {"devices": "gpu"}, "TensorFlow finds no GPU"),
        (BOTH, {"model": "mnist_cn"}, "'mnist_cn'.*'mnist_cnn'"),
        (BOTH, {"examples": 0}, "examples=0 was asked for"),
        ([strategies], {"epochs": 1.5}, "epochs=1.5 was asked for"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_starts(benchmarks, arguments, message, monkeypatch):
    monkeypatch.setattr(Hardware, "of", classmethod(lambda cls, about: cls(cores=2, gpus=0)))
    monkeypatch.setattr(measure, "Group", None)
    for benchmark in benchmarks:
        with pytest.raises(MirrorkitError, match=message):
            benchmark(**arguments)


@pytest.mark.slow  # seven processes
@pytest.mark.parametrize("devices", ["cpu", "workers"])
def test_strategies_reach_the_same_accuracy(run_benchmark, check_rows, devices, request, monkeypatch):
    kinds = {"cpu": ("mirrored", "central_storage"), "workers": ("multi_worker", "parameter_server")}[devices]
    if devices == "cpu":
        request.getfixturevalue("in_this_process")
        monkeypatch.setattr("mirrorkit.processor.cores", lambda: 1)  # where no worker would have a core of its own
    work = SMALL.replace("cpu", devices)
    written, _ = run_benchmark(f"training_speed.py strategies {work} --examples 4096 --epochs 3")
    rows = {row["strategy"]: row for row in written["rows"]}
    check_rows(rows.values())
    assert tuple(rows) == ("one_device", *kinds)
    accuracy = rows["one_device"]["accuracy"]
    assert accuracy > 0.3  # one class in ten is 0.1
    for kind, row in rows.items():
        # Workers of parameter servers do not wait for each other: on a busy machine 0.1 was missing.
        assert row["accuracy"] == pytest.approx(accuracy, abs=0.15 if kind == "parameter_server" else 0.02)
