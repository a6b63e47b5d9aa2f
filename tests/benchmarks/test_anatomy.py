"""The parts of a step from timings that are made up, the verdict, and refusals."""

from __future__ import annotations

import pytest
from anatomy import Anatomy, anatomy, parts_of, without_dispatch

import mirrorkit as mk
from mirrorkit.errors import StepError


def make_anatomy(**parts):
    whole = {"input": 0.0, "compute": 0.0, "all_reduce": 0.0, "update": 0.0, "python": 0.0, **parts}
    return Anatomy(sum(whole.values()), whole, input_alone=0.0, steps_per_call=7, spread=0.0)


def test_parts_are_the_differences_of_variants_with_the_cost_of_calls_taken_out():
    """A machine on which all is known: a call costs 6 ms, and each part of a step its own time."""
    own = {"input": 5e-3, "compute": 10e-3, "all_reduce": 2e-3, "update": 1e-3}
    steps = {"whole": 4, "input": 8, "fixed": 10, "reduce": 10, "compute": 20}
    net = {
        "whole": 18e-3,
        "input": 7e-3,
        "fixed": 13e-3,
        "reduce": 12e-3,
        "compute": 10e-3,
    }
    timed = {name: net[name] + 6e-3 / steps[name] for name in net}
    dispatch, found = without_dispatch(timed, single=13e-3 + 6e-3, steps=steps)
    assert dispatch == pytest.approx(6e-3)
    assert found == pytest.approx(net)
    assert parts_of(found) == pytest.approx(own)


@pytest.mark.parametrize(
    ("part", "verdict"),
    [
        ("input", "input-bound"),
        ("compute", "compute-bound"),
        ("python", "Python-bound"),
    ],
)
def test_the_largest_part_gives_the_verdict(part, verdict):
    found = make_anatomy(**{"compute": 1e-3, part: 3e-3})
    assert found.bound == part
    assert sum(found.shares.values()) == pytest.approx(1.0)
    lines = str(found).splitlines()
    assert lines[-1].startswith(verdict)
    assert lines[0].startswith(f"step {1e3 * found.seconds:.3f} ms")
    assert [line.split()[0] for line in lines[2:7]] == ["input", "compute", "all-reduce", "update", "python"]


@pytest.mark.parametrize(
    ("workers", "straggler"),
    [([1.0], None), ([1.0, 1.1], None), ([1.0, 1.5], 1), ([1.5, 1.0, 1.1, 1.0], 0), ([1.0, 1.0, 1.1, 1.0], None)],
)
def test_a_worker_is_a_straggler_when_it_is_a_fifth_slower_than_the_median_of_the_others(workers, straggler):
    found = Anatomy(1.0, {"compute": 1.0}, 0.0, 1, 0.0, workers)
    assert found.straggler == straggler


def test_the_parts_of_a_users_own_step_are_unknown(strategy_of):
    class Own:
        def build(self, strategy): ...
        def compute(self, batch): ...
        def update(self, strategy, sums): ...

    with pytest.raises(StepError, match="parts of Own"):
        anatomy(mk.train.Loop(strategy_of("mirrored", 2), Own()), None)
