"""Timers, the throughput and the profiler."""

from __future__ import annotations

import math
import threading
import time

import numpy as np
import pytest
import tensorflow as tf

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.errors import StepError
from mirrorkit.timing import Throughput, Timer


@pytest.fixture
def queued_work(monkeypatch):
    """Queues an op that does not end before somebody waits for the devices; the list it fills tells that it ended."""
    somebody_waits, done = threading.Event(), []
    sync_devices = tf.test.experimental.sync_devices

    def waiting():
        somebody_waits.set()
        sync_devices()

    def work():
        somebody_waits.wait(30)
        done.append(True)
        return 0.0

    @tf.function
    def call():
        return tf.py_function(work, [], tf.float32)

    def queue():
        somebody_waits.clear()
        done.clear()
        call()
        return done

    monkeypatch.setattr(tf.test.experimental, "sync_devices", waiting)
    tf.config.experimental.set_synchronous_execution(False)
    yield queue
    waiting()
    tf.config.experimental.set_synchronous_execution(True)


def test_the_timer_waits_for_the_devices_before_it_starts(queued_work):
    done = queued_work()
    with Timer():
        assert done


def test_the_timer_waits_for_the_devices_at_a_lap_and_at_the_end(queued_work):
    with Timer() as timer:
        done = queued_work()
        timer.lap()
        assert done
        done = queued_work()
    assert done


def test_a_warm_up_waits_for_the_devices_at_its_end(queued_work):
    done = []
    mk.timing.warm_up(lambda: done.append(queued_work()), restore=tf.Variable(0.0))
    assert done == [[True]]


def test_seconds_and_laps(monkeypatch):
    clock = iter([10.0, 11.0, 13.0, 16.0, 20.0, 20.5])
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    timer = Timer()
    assert timer.seconds == 0
    with timer:
        assert timer.lap() == 1.0
        assert timer.lap() == 2.0
        assert timer.seconds == 6.0
    assert timer.laps == [1.0, 2.0]
    assert timer.seconds == 10.0
    assert timer.seconds == 10.0
    with pytest.raises(StopIteration), timer:  # a second use starts from zero
        assert timer.laps == []


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


class Trained(keras.callbacks.Callback):
    """Counts the profiler's starts and stops against the steps done, without a profiler."""

    def __init__(self, monkeypatch):
        super().__init__()
        self.steps, self.seen = 0, []
        monkeypatch.setattr(tf.profiler.experimental, "start", lambda folder: self.seen.append(("start", self.steps)))
        monkeypatch.setattr(tf.profiler.experimental, "stop", lambda: self.seen.append(("stop", self.steps)))

    def on_train_batch_end(self, batch, logs=None):
        self.steps += 1


def fit_with(callbacks, *, epochs=1, **compiled):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", **compiled)
    model.fit(np.zeros([48, 2]), np.zeros([48, 1]), batch_size=8, epochs=epochs, callbacks=callbacks, verbose=0)


def test_profile_holds_the_steps_that_were_asked_for_across_epochs(monkeypatch):
    trained = Trained(monkeypatch)
    profile = mk.timing.profile("nowhere", steps=(4, 9))
    fit_with([trained, profile], epochs=3)  # 6 steps each
    assert trained.seen == [("start", 4), ("stop", 9)]
    assert profile.profiled == (4, 9)


def test_a_profile_in_a_loop_holds_whole_calls_and_an_error_leaves_no_profiler_running(strategy_of, tmp_path):
    class Fails(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            raise KeyError("mine")

    strategy = strategy_of("mirrored", 2)
    with strategy.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD()
    loop = mk.train.Loop(strategy, mk.train.Step(model, optimizer, loss="mse"), steps_per_call=4)
    split = mk.data.arrays(np.zeros([96, 2], np.float32), np.zeros([96, 1], np.float32))
    data = mk.data.batches(split, global_batch_size=8)
    with pytest.raises(KeyError, match="mine"):
        loop.fit(data, verbose=0, callbacks=[Fails(), mk.timing.profile(tmp_path, steps=(0, 12))])
    profile = mk.timing.profile(tmp_path, steps=(3, 6))
    loop.fit(data, verbose=0, callbacks=[profile])  # which could not start beside another
    assert profile.profiled == (4, 8)
    (trace,) = tmp_path.rglob("*.xplane.pb")
    assert trace.stat().st_size > 1000


@pytest.mark.parametrize("steps", [(5, 5), (-1, 3), (7, 2), (0.5, 3), (True, 3), (1, 2.5), (0, math.inf)])
def test_profile_of_no_steps(steps):
    with pytest.raises(StepError, match="give \\(first, end\\)"):
        mk.timing.profile("nowhere", steps=steps)
