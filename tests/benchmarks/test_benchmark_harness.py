"""What benchmarks are made of: turns, layouts and figures."""

from __future__ import annotations

import json

from harness.measure import Turns, in_turns
from harness.report import figures, span
from harness.topology import Topology

from mirrorkit.errors import MirrorkitError


def test_turns_alternate_and_one_that_fails_gets_no_more():
    seen = []

    def subject(name, fails_at=None):
        def call():
            seen.append(name)
            if seen.count(name) == fails_at:
                raise MirrorkitError("out of memory")
            return len(seen)

        return call

    turns = in_turns({"a": subject("a"), "b": subject("b", fails_at=2), "c": subject("c")}, 3)
    assert seen == ["a", "b", "c", "a", "b", "c", "a", "c"]
    assert turns == {"a": Turns([1, 4, 7]), "b": Turns([2], "out of memory"), "c": Turns([3, 6, 8])}


def test_a_layout_with_a_parameter_server_is_called_in_its_chief_alone():
    members = Topology("parameter_server", "workers", 2).members()
    tasks = [json.loads(member.environment["TF_CONFIG"])["task"]["type"] for member in members]
    assert [member.answers for member in members] == [True, False, False, False]
    assert tasks[0] == "chief"
    assert sorted(tasks[1:]) == ["ps", "worker", "worker"]
    assert {member.core for member, task in zip(members, tasks, strict=True) if task == "worker"} == {0, 1}


def test_figures_are_median_best_and_spread():
    found = figures([10.0, 30.0, 20.0])
    assert found == {"values": [10.0, 30.0, 20.0], "n": 3, "median": 20.0, "best": 30.0, "spread": 1.0}
    assert figures([10.0, 30.0, 20.0], smaller_is_better=True) == found | {"best": 10.0}
    assert span(found) == (10.0, 30.0)
    assert figures([], "broken") == {"error": "broken"}
    assert span({"error": "broken"}) is None
