"""Layouts: which replicas, and the processes that make them up."""

from __future__ import annotations

import json

from harness.topology import Hardware, Topology, for_comparison


def test_layouts_of_workers_find_each_other_on_cores_of_their_own():
    alone, two = Topology.of("workers", 1), Topology.of("workers", 2)
    assert alone == Topology("one_device", "workers", 1)
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
    members = Topology("parameter_server", "workers", 2).members()
    tasks = [json.loads(member.environment["TF_CONFIG"])["task"]["type"] for member in members]
    assert [member.answers for member in members] == [True, False, False, False]
    assert tasks[0] == "chief"
    assert sorted(tasks[1:]) == ["ps", "worker", "worker"]
    assert {member.core for member, task in zip(members, tasks, strict=True) if task == "worker"} == {0, 1}


def test_beside_gpus_there_is_a_cpu_which_leaves_the_gpus_alone():
    gpu, cpu, *others = for_comparison("gpu", [1, 2], cores=2)
    assert gpu == Topology("one_device", "gpu", 1), "the first one is what the others are compared with"
    assert cpu == Topology("one_device", "cpu", 1)
    assert {layout.device for layout in others} == {"gpu"}
    assert [layout.device for layout in for_comparison("cpu", [1], cores=2)] == ["cpu"]
    (member,), (other,) = cpu.members(), gpu.members()
    assert member.arguments["devices"] == "cpu:1"
    assert member.environment == {"CUDA_VISIBLE_DEVICES": ""}
    assert "CUDA_VISIBLE_DEVICES" not in other.environment


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
