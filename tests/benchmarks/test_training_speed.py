"""Scaling and strategies: arithmetic on measurements that are made up, refusals, and short real runs."""

from __future__ import annotations

import pytest
import training_speed
from all_reduce import collectives
from harness import measure
from harness.measure import Measured
from harness.topology import Hardware, Topology
from training_speed import scaling, strategies

from mirrorkit.errors import MirrorkitError

SMALL = "--model linear --data synthetic --global-batch-size 64 --devices cpu --replicas 2"


@pytest.fixture
def measured(monkeypatch):
    """Lets scaling and strategies "measure" what a table says, and returns the jobs that were asked for."""
    asked = []

    def use(speeds):
        def measure_in_turns(jobs, **options):
            asked.append((jobs, options))
            facts = {"data": "digits", "examples": 1000}
            return {
                key: Measured(error="no room")
                if (speed := speeds(job.layout, job.arguments["global_batch_size"])) is None
                else Measured(
                    [0.9 * speed, speed, 1.3 * speed],
                    facts,
                    0.9 + job.layout.replicas / 100,
                    [2e3] * job.layout.replicas if options["inputs"] and job.layout.kind == "multi_worker" else None,
                )
                for key, job in jobs.items()
            }

        monkeypatch.setattr(training_speed, "measure_in_turns", measure_in_turns)
        return asked

    return use


def by_place(report):
    return {(row["scaling"], row["replicas"]): row for row in report.rows}


def test_speedup_and_efficiency_are_against_one_replica(measured, monkeypatch):
    monkeypatch.setattr(Hardware, "of", classmethod(lambda cls, about: cls(cores=2, gpus=4)))
    asked = measured(lambda layout, batch: 100.0 * layout.replicas**0.5 * (batch / 64) ** 0.25)
    report = scaling(global_batch_size=64, replicas=[2, 4], repeats=3)
    rows = by_place(report)
    assert list(rows) == [("baseline", 1), ("strong", 2), ("strong", 4), ("weak", 2), ("weak", 4)]
    assert rows["strong", 4]["speedup"] == pytest.approx(2.0)
    assert rows["strong", 4]["efficiency"] == pytest.approx(0.5)
    assert rows["weak", 4]["speedup"] == pytest.approx(2.0 * 4**0.25)
    assert rows["weak", 4]["global_batch_size"] == 256
    assert rows["strong", 4]["global_batch_size"] == 64
    assert rows["strong", 4]["spread"] == pytest.approx(0.4)
    assert "overhead" not in rows["strong", 2]
    assert not report.notes
    ((jobs, options),) = asked
    assert options["repeats"] == 3
    assert jobs["weak", 2, 128].layout == Topology("mirrored", "gpu", 2)
    assert jobs["weak", 2, 128].arguments["global_batch_size"] == 128


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
