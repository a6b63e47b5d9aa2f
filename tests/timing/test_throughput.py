from __future__ import annotations

import math

import pytest

from mirrorkit.errors import StepError
from mirrorkit.timing import Throughput


def test_rates_leave_the_first_call_out_and_totals_count_it():
    throughput = Throughput()
    throughput.record(examples=100, steps=10, seconds=10.0)
    throughput.record(examples=100, steps=10, seconds=1.0)
    throughput.record(examples=300, steps=30, seconds=1.0)
    assert throughput.first_call_seconds == 10.0
    assert (throughput.examples, throughput.steps, throughput.seconds) == (500, 50, 12.0)
    assert throughput.examples_per_second == 200.0
    assert "first call: 10 s" in throughput.summary()
    assert "200 examples/s" in throughput.summary()


def test_step_times_are_weighted_by_steps():
    throughput = Throughput(warm=True)
    throughput.record(examples=1, steps=1, seconds=0.5)  # 500 ms per step, 1 step
    throughput.record(examples=98, steps=98, seconds=0.98)  # 10 ms
    throughput.record(examples=1, steps=1, seconds=0.001)  # 1 ms
    assert throughput.step_seconds_median == pytest.approx(0.01)
    assert throughput.step_seconds_p95 == pytest.approx(0.01)
    throughput.record(examples=10, steps=10, seconds=2.0)  # 200 ms
    assert throughput.step_seconds_p95 == pytest.approx(0.2)


def test_after_a_warm_up_the_first_call_counts():
    throughput = Throughput(warm=True)
    throughput.record(examples=100, steps=10, seconds=1.0)
    throughput.record(examples=100, steps=10, seconds=3.0)
    assert throughput.examples_per_second == 50.0
    assert "first call" not in throughput.summary()


def test_nothing_recorded_is_not_a_rate_of_zero():
    throughput = Throughput()
    assert math.isnan(throughput.examples_per_second)
    assert math.isnan(throughput.step_seconds_p95)
    assert math.isnan(throughput.first_call_seconds)
    assert throughput.examples == 0
    assert throughput.summary() == "nothing recorded"


@pytest.mark.parametrize("wrong", [{"steps": 0}, {"examples": -1}, {"seconds": 0.0}, {"seconds": math.nan}])
def test_records_that_cannot_be(wrong):
    with pytest.raises(StepError, match="got steps="):
        Throughput().record(**{"examples": 1, "steps": 1, "seconds": 1.0, **wrong})
