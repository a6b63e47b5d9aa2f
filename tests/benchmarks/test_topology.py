"""Layouts: which replicas, and the processes that make them up."""

from __future__ import annotations

import json

from harness.topology import Topology


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
