"""Arithmetic of the tables on measurements that are made up, and refusals; test_bench_runs.py really measures."""

from __future__ import annotations

import importlib
import json

import pytest

from mirrorkit import bench
from mirrorkit.bench import measure
from mirrorkit.bench.layout import Hardware, Layout, for_comparison, for_scaling
from mirrorkit.bench.measure import Measured
from mirrorkit.errors import MirrorkitError, StrategyError


@pytest.fixture
def measured(monkeypatch):
    """Lets scaling and strategies "measure" what a table says, and returns the jobs that were asked for."""
    asked = []

    def use(speeds):
        def train_in_turns(jobs, **options):
            asked.append((jobs, options))
            facts = {"data": "digits", "examples": 1000}
            return {
                key: Measured(error="no room")
                if (speed := speeds(layout, batch_size)) is None
                else Measured([0.9 * speed, speed, 1.3 * speed], facts, 0.9 + layout.replicas / 100)
                for key, (layout, batch_size) in jobs.items()
            }

        for name in ("scaling", "strategies"):
            monkeypatch.setattr(importlib.import_module(f"mirrorkit.bench.{name}"), "train_in_turns", train_in_turns)
        return asked

    return use


def by_place(report):
    return {(row["scaling"], row["replicas"]): row for row in report.rows}


def test_speedup_and_efficiency_are_against_one_replica(measured, monkeypatch):
    monkeypatch.setattr(Hardware, "of", classmethod(lambda cls, about: cls(cores=2, gpus=4)))
    asked = measured(lambda layout, batch: 100.0 * layout.replicas**0.5 * (batch / 64) ** 0.25)
    report = bench.scaling(batch_size=64, replicas=[2, 4], repeats=3)
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
    assert jobs["weak", 2, 128] == (Layout("mirrored", "gpu", 2), 128)


def test_virtual_devices_get_an_overhead_instead_and_the_report_says_why(measured):
    measured(lambda layout, batch: 100.0 if layout.replicas == 1 else 80.0)
    report = bench.scaling(device="cpu", replicas=[2], mode="strong")
    baseline, two = report.rows
    assert two["overhead"] == pytest.approx(0.25)
    assert "speedup" not in two
    assert baseline["speedup"] == 1.0
    assert "share the same cores" in str(report)


def test_a_layout_that_fails_is_a_row_with_its_error(measured):
    measured(lambda layout, batch: None if layout.replicas == 4 else 10.0)
    report = bench.scaling(device="cpu", replicas=[2, 4], mode="weak")
    assert report.rows[-1]["error"] == "no room"
    assert "no room" in str(report)
    assert report.chart.series["weak"] == [10.0, 10.0, None]


def test_strategies_compares_speed_and_accuracy(measured):
    measured(lambda layout, batch: {"one_device": 100.0, "mirrored": 50.0}.get(layout.kind))
    report = bench.strategies(device="cpu", replicas=[2], epochs=3)
    assert [(row["strategy"], row["replicas"]) for row in report.rows] == [
        ("one_device", 1),
        ("mirrored", 2),
        ("central_storage", 2),
        *([("multi_worker", 2), ("parameter_server", 2)] if report.about["cores"] > 1 else []),
    ]
    assert [row.get("ratio") for row in report.rows[:3]] == [1.0, 0.5, None]
    assert report.rows[1]["accuracy"] == pytest.approx(0.92)
    assert report.rows[2]["error"] == "no room"
    assert "to one device" in str(report)


def test_layouts_of_workers_find_each_other_on_cores_of_their_own():
    alone, two = for_scaling("workers", [2]).values()
    assert alone == Layout("one_device", "workers", 1)
    (member,) = alone.members(batch_size=8)
    assert (member.arguments["devices"], member.core) == ("cpu:1", 0)
    first, second = two.members(batch_size=8)
    assert (first.core, second.core) == (0, 1)
    assert first.arguments == {"batch_size": 8, "kind": "multi_worker", "devices": None}
    configs = [json.loads(member.environment["TF_CONFIG"]) for member in (first, second)]
    assert [config["task"]["index"] for config in configs] == [0, 1]
    assert configs[0]["cluster"] == configs[1]["cluster"]
    assert first.answers
    assert second.answers


def test_a_layout_with_a_parameter_server_is_called_in_its_chief_alone():
    members = Layout("parameter_server", "workers", 2).members()
    tasks = [json.loads(member.environment["TF_CONFIG"])["task"]["type"] for member in members]
    assert [member.answers for member in members] == [True, False, False, False]
    assert tasks[0] == "chief"
    assert sorted(tasks[1:]) == ["ps", "worker", "worker"]
    assert {member.core for member, task in zip(members, tasks, strict=True) if task == "worker"} == {0, 1}


def test_default_numbers_of_replicas_follow_the_hardware():
    hardware = Hardware(cores=6, gpus=2)
    assert hardware.device() == "gpu"
    assert hardware.counts("gpu") == [1, 2]
    assert hardware.counts("workers") == [1, 2, 4]
    assert Hardware(cores=6, gpus=0).device() == "cpu"
    assert hardware.is_shared("cpu", 2)
    assert not hardware.is_shared("workers", 6)


def test_a_comparison_has_every_kind_that_the_machine_can_run():
    def found(*arguments, cores=2):
        layouts = for_comparison(*arguments, cores=cores)
        return [(layout.kind, layout.replicas) for layout in layouts if layout.replicas > 1]

    assert found("gpu", [1, 2]) == [("mirrored", 2), ("central_storage", 2)]
    assert found("workers", [1, 4]) == [("multi_worker", 4), ("parameter_server", 4)]
    processes = [("multi_worker", 2), ("parameter_server", 2)]
    assert found("cpu", [2, 4]) == [
        ("mirrored", 2),
        ("mirrored", 4),
        ("central_storage", 2),
        ("central_storage", 4),
        *processes,
    ]
    assert found("cpu", [2], cores=1) == found("gpu", [2])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"device": "tpu"}, "'tpu' was asked for; there are 'cpu', 'gpu', 'workers'"),
        ({"mode": "sideways"}, "'sideways' was asked for; there are 'strong'"),
        ({"replicas": [0, 2]}, "must be a whole number of at least 1"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_starts(arguments, message):
    with pytest.raises(StrategyError, match=message):
        bench.scaling(**arguments)
    with pytest.raises(StrategyError, match="2 replicas or more"):
        bench.collectives(replicas=1)
    with pytest.raises(StrategyError, match="carrier_pigeon"):
        bench.collectives(implementations=["carrier_pigeon"])
    with pytest.raises(StrategyError, match="for 'workers' of the implementations auto, ring"):
        bench.collectives(device="workers", implementations=["one_device"])


@pytest.mark.parametrize("benchmark", [bench.scaling, bench.strategies, bench.collectives])
@pytest.mark.parametrize("replicas", [None, 2])
def test_gpus_that_are_not_there(benchmark, replicas, monkeypatch):
    monkeypatch.setattr(Hardware, "of", classmethod(lambda cls, about: cls(cores=2, gpus=0)))
    asked = [replicas] if replicas and benchmark != bench.collectives else replicas
    with pytest.raises(StrategyError, match="TensorFlow finds no GPU"):
        benchmark(device="gpu", replicas=asked)


@pytest.mark.parametrize("benchmark", [bench.scaling, bench.strategies])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model": "mnist_cn"}, "There is no model 'mnist_cn'. Did you mean 'mnist_cnn'"),
        ({"examples": -5}, "examples=-5 was asked for"),
        ({"examples": 0}, "examples=0 was asked for"),
    ],
)
def test_no_process_is_started_for_what_cannot_be_trained(benchmark, arguments, message, monkeypatch):
    monkeypatch.setattr(measure, "Remote", None)
    with pytest.raises(MirrorkitError, match=message):
        benchmark(device="cpu", **arguments)
