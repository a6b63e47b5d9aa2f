"""Threads fetch batches ahead, in their order, and end with the iterator."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from own_items import Ascending, Faulty, Items, Slow

from mirrorkit.errors import DataError
from mirrorkit.fetching import ahead
from mirrorkit.fetching.ahead import fetched
from mirrorkit.fetching.fetcher import Fetcher


class Waiting:
    """An array whose reads wait until they may go on, but for the first two rows."""

    def __init__(self, x):
        self.x, self.shape, self.dtype = x, x.shape, x.dtype
        self.go_on, self.begun, self._changed = threading.Event(), 0, threading.Condition()

    def __getitem__(self, rows):
        if np.min(np.arange(len(self.x))[rows]) > 1:
            with self._changed:
                self.begun += 1
                self._changed.notify()
            self.go_on.wait()
        return self.x[rows]

    def waits_for(self, number):
        with self._changed:
            assert self._changed.wait_for(lambda: self.begun == number, timeout=60)


X = np.arange(100)[:, None]
Y = np.arange(100) % 7


def fetching() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("mirrorkit-fetch")]


@pytest.mark.parametrize(("threads", "size"), [(1, 7), (3, 50), (16, 1)])
def test_batches_come_in_their_order_each_item_once(threads, size):
    items = Items(X, Y)
    fetcher = Fetcher(items)
    items.fetched.clear()
    order = np.random.default_rng(0).permutation(100)
    batches = [order[first : first + size] for first in range(0, 100, size)]
    for (x, y), numbers in zip(fetched(fetcher, batches, threads=threads), batches, strict=True):
        np.testing.assert_array_equal(x, X[numbers])
        np.testing.assert_array_equal(y, Y[numbers])
    assert sorted(items.fetched) == list(range(100))


def test_each_thread_reads_ascending_rows_of_arrays():
    array = Ascending(X)
    order = np.random.default_rng(0).permutation(100).reshape(5, 20)
    for (x,), numbers in zip(fetched(Fetcher(array), order, threads=2), order, strict=True):
        np.testing.assert_array_equal(x, X[numbers])


def test_all_threads_work_while_small_batches_are_waited_for():
    items = Slow(X, Y)
    for _ in fetched(Fetcher(items), np.arange(100).reshape(50, 2), threads=8):
        pass
    assert len({name for name in items.threads if name.startswith("mirrorkit-fetch")}) == 8


def test_no_more_is_fetched_ahead_than_keeps_the_threads_busy():
    items = Items(X, Y)
    fetcher = Fetcher(items)
    items.fetched.clear()
    batches = fetched(fetcher, np.arange(100).reshape(10, 10), threads=4)
    next(batches)
    batches.close()
    assert set(items.fetched) <= set(range(20))


def test_an_iterator_that_is_dropped_ends_its_threads_after_the_items_that_they_fetch():
    items = Slow(X, Y, 0.02)
    batches = fetched(Fetcher(items), np.arange(100).reshape(2, 50), threads=2)
    next(batches)
    assert fetching()
    del batches
    assert not fetching()
    assert len(items.fetched) < 90  # the second batch is begun, in two parts


def test_reads_that_no_thread_has_begun_are_left_out_at_the_end(monkeypatch):
    """Three threads have four parts of arrays to read: those that they wait in, and one that is never begun."""
    array = Waiting(X)

    class Pool(ThreadPoolExecutor):
        def shutdown(self, wait=True, **options):
            super().shutdown(False, **options)
            array.go_on.set()
            super().shutdown(wait)

    fetcher = Fetcher(array)
    monkeypatch.setattr(ahead, "ThreadPoolExecutor", Pool)
    batches = fetched(fetcher, np.arange(20).reshape(10, 2), threads=3)
    next(batches)
    array.waits_for(3)
    batches.close()
    assert array.begun == 3


def test_an_error_comes_in_the_place_of_its_batch():
    batches = fetched(Fetcher(Faulty(25, ValueError("bad"))), np.arange(40).reshape(4, 10), threads=4)
    assert [len(next(batches)[0]) for _ in range(2)] == [10, 10]
    with pytest.raises(DataError, match="item 25 of Faulty failed"):
        next(batches)
