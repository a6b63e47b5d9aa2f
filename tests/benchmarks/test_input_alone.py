"""The input without a training: which rows are read and counted, epoch after epoch, and the rates made of them."""

from __future__ import annotations

import itertools
import threading
import time

import anatomy
import numpy as np
import pytest
import tensorflow as tf
from anatomy import Epochs, InputAlone

import mirrorkit as mk


def split(examples):
    """The number of an example is its input."""
    return mk.data.arrays(np.arange(examples, dtype=np.float32)[:, None], np.zeros([examples, 1], np.float32))


def numbers_of(strategy, rows):
    return [part.numpy().ravel().tolist() for part in strategy.experimental_local_results(rows[0])]


@pytest.fixture
def as_worker(monkeypatch):
    """Lets a strategy of one replica read as one worker of several does."""

    def use(worker, workers):
        context = tf.distribute.InputContext(workers, worker, workers)
        monkeypatch.setattr("mirrorkit.train.input.input.input_context", lambda strategy: context)

    return use


@pytest.mark.parametrize("kind", ["batches", "resident"])
def test_epochs_follow_one_another_without_their_smaller_batch(strategy_of, kind):
    """Four batches of 8 and one of 1; a batch of 1 would be measured as one of 8, or could not be read as one."""
    strategy = strategy_of("mirrored", 2)
    data = getattr(mk.data, kind)(split(33), global_batch_size=8)
    epochs = Epochs(strategy, data)
    assert epochs.most == 4
    places = []
    for batches in (1, 2, 2, 4, 1):
        epoch = epochs.with_left(batches)
        places.append(epoch.position)
        epoch.advance(batches)
    assert places == [0, 1, 0, 0, 0]
    alone = InputAlone(strategy, data)
    assert numbers_of(strategy, alone.rows) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    for batches in (3, 4, 1, 4):
        assert alone.seconds(batches) > 0


def test_a_dataset_that_does_not_tell_its_sizes_is_counted_by_its_own_batches(strategy_of):
    strategy = strategy_of("mirrored", 2)
    data = tf.data.Dataset.from_tensor_slices((split(13).images, split(13).labels)).batch(6)
    alone = InputAlone(strategy, data)
    assert alone.own == 6
    assert numbers_of(strategy, alone.rows) == [[0, 1, 2], [3, 4, 5]]
    assert alone.seconds(alone.most) > 0  # the last batch has no row for the second replica


@pytest.mark.parametrize(("worker", "own"), [(0, [0, 1, 2]), (1, [3, 4, 5]), (2, [6])])
def test_a_worker_counts_the_rows_that_it_reads(strategy_of, as_worker, worker, own):
    as_worker(worker, 3)
    strategy = strategy_of("one_device", 1)
    read = []

    def look(x, y):
        with tf.control_dependencies([tf.numpy_function(lambda x: read.append(x.ravel().tolist()), [x], [])]):
            return tf.identity(x), y

    recipe = mk.data.batches(split(14), global_batch_size=7, map=look)
    recipe.dataset()  # looks at the map, once
    read.clear()
    alone = InputAlone(strategy, recipe)
    assert numbers_of(strategy, alone.rows) == [own]
    assert alone.own == len(own)
    alone.seconds(1)
    assert own in read
    assert set(itertools.chain.from_iterable(read)) <= {*own, *(7 + i for i in own)}


def test_a_rate_is_own_rows_by_the_fastest_time(strategy_of, monkeypatch):
    """50 batches of 6 rows in 0.3, 0.25, 0.5 s; a measurement is as many batches as take 0.25 s."""
    monkeypatch.setattr(anatomy, "_SECONDS", 0.25)
    strategy = strategy_of("mirrored", 2)
    alone = InputAlone(strategy, mk.data.batches(split(600), global_batch_size=6))
    times = iter([9.0, 0.01, 9.0, 0.3, 0.25, 0.5])  # compiles; two batches; what was prefetched; three measurements
    asked = []
    monkeypatch.setattr(alone, "seconds", lambda batches: (asked.append(batches), next(times))[1])
    assert alone.rates(repeats=3) == [pytest.approx(6 * 50 / 0.25)]
    assert asked == [1, 2, 50, 50, 50, 50]


def test_a_rate_is_no_more_than_a_slow_input_brings(strategy_of, as_worker):
    """A row takes 2 ms, one after the other: 500 rows/s, whichever share of a batch a worker reads."""
    as_worker(1, 2)
    one_at_a_time = threading.Lock()

    def sleep(rows):
        with one_at_a_time:
            time.sleep(0.002 * len(rows))
        return rows

    def slow(x, y):
        return tf.ensure_shape(tf.numpy_function(sleep, [x], tf.float32), x.shape), y

    alone = InputAlone(strategy_of("one_device", 1), mk.data.batches(split(320), global_batch_size=8, map=slow))
    assert alone.own == 4
    (rate,) = alone.rates(repeats=2)
    # More than 500 by what is prefetched before a measurement and read in it.
    assert rate < 700, "twice as many rows are counted as this worker reads"
