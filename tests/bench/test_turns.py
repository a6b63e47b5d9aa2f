"""Turns alternate, and stop where they must."""

from __future__ import annotations

import pytest

from mirrorkit.bench.turns import Turns, in_turns, values_in_turns
from mirrorkit.errors import ArgumentError, MirrorkitError


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


def test_where_one_must_not_fail_its_error_is_raised():
    def fail():
        raise ArgumentError("no such data")

    with pytest.raises(ArgumentError, match="no such data"):
        values_in_turns({"a": fail}, 2)


def test_rounds_that_warm_up_do_not_count():
    seen = []
    calls = {name: lambda name=name: seen.append(name) or len(seen) for name in "ab"}
    assert values_in_turns(calls, 2, warm_up=1) == {"a": [3, 5], "b": [4, 6]}
    assert seen == [*"ababab"]


def test_after_its_time_no_round_of_turns_begins_but_the_first():
    seen = []
    in_turns({"a": lambda: seen.append("a"), "b": lambda: seen.append("b")}, 3, until=0.0)
    assert seen == ["a", "b"]


@pytest.mark.parametrize("repeats", [0, 1.5])
def test_no_whole_number_of_turns_is_refused(repeats):
    with pytest.raises(ArgumentError, match=rf"repeats must be .* from 1 on, found {repeats}"):
        in_turns({"a": lambda: 1.0}, repeats)
