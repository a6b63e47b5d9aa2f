"""Measurements in turns and within a budget, on processes and a clock that are made up."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from harness import measure
from harness.measure import LEFT_OUT, Budget, Job, Measured, Turns, in_turns, measure_in_turns
from harness.topology import Topology

from mirrorkit.errors import ArgumentError, MirrorkitError


class Machine:
    """A clock, and processes that take their time by it."""

    def __init__(self, monkeypatch, *, starts, epochs, fails=()):
        self.now, self.seen = 0.0, []
        self.starts, self.epochs, self.fails = starts, epochs, fails
        monkeypatch.setattr(measure, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(measure, "Group", self.group)

    def group(self, target, *members, timeout):
        machine = self

        class Fake:
            def __enter__(self):
                return self

            def __exit__(self, *_):
                machine.seen.append(f"end {target}")

            def call(self, method, **arguments):
                if target in machine.fails or (target, arguments.get("epochs")) in machine.fails:
                    raise MirrorkitError("no room")
                machine.now += machine.starts if method == "facts" else machine.epochs * arguments.get("epochs", 0)
                machine.seen.append((target, arguments.get("epochs", method)))
                return {"facts": {}, "evaluate": 0.5, "input_rates": [3.0, 4.0]}.get(method, 100.0)

        return Fake()


def jobs(names):
    return {name: Job(name, Topology("one_device", "cpu", 1)) for name in names}


def test_turns_are_about_two_seconds_long_and_alternate(monkeypatch):
    machine = Machine(monkeypatch, starts=10, epochs=0.5)
    found = measure_in_turns(jobs("ab"), budget=Budget(1000), seconds=500, repeats=2)
    assert machine.seen[:3] == [("a", "facts"), ("a", 1), ("a", 1)]
    assert machine.seen[6:10] == [("a", 4), ("b", 4), ("a", 4), ("b", 4)]
    assert machine.seen[10:] == ["end b", "end a"]
    assert found["a"] == Measured([100.0, 100.0])


def test_nothing_is_started_that_would_not_end_with_the_budget_and_turns_end_with_it(monkeypatch):
    machine = Machine(monkeypatch, starts=10, epochs=1)
    budget = Budget(25)  # the first takes 12 s to start, and so would the next, and 2 s each for the turns
    found = measure_in_turns(jobs("abc"), budget=budget, seconds=1000, repeats=1)
    assert [measured.error for measured in found.values()] == [None, LEFT_OUT, LEFT_OUT]
    assert budget.left > 0
    found = measure_in_turns(jobs("abc"), budget=Budget(30), seconds=1000, repeats=1)
    assert [measured.error for measured in found.values()] == [None, None, LEFT_OUT]
    budget = Budget(30)
    found = measure_in_turns(jobs("a"), budget=budget, seconds=1000, repeats=100)
    assert 1 < len(found["a"].speeds) < 10
    assert machine.now <= budget.end


def test_a_job_that_fails_is_an_error_and_the_others_go_on(monkeypatch):
    Machine(monkeypatch, starts=1, epochs=1, fails=("a", ("b", 3)))  # at its start, and in its first turn
    found = measure_in_turns(jobs("abc"), repeats=2, epochs=3, evaluate=True)
    assert [found[name].error for name in "abc"] == ["no room", "no room", None]
    assert [len(found[name].speeds) for name in "abc"] == [0, 0, 2]
    assert [found[name].accuracy for name in "abc"] == [None, None, 0.5]


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


@pytest.mark.parametrize("repeats", [0, 1.5])
def test_no_whole_number_of_turns_is_refused(repeats):
    with pytest.raises(ArgumentError, match=rf"repeats .*{repeats}"):
        in_turns({"a": lambda: 1.0}, repeats)
