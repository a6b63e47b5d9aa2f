from __future__ import annotations

import threading
import time

import pytest
import tensorflow as tf

import mirrorkit as mk
from mirrorkit.timing import Timer


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
