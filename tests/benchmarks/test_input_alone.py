"""The input without a training: which rows a worker reads and counts, and the rates made of them."""

from __future__ import annotations

import itertools

import anatomy
import numpy as np
import pytest
import tensorflow as tf
from anatomy import InputAlone

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


@pytest.mark.parametrize(("worker", "own"), [(0, [0, 1, 2]), (2, [6])])
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
