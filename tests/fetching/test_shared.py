"""Threads share what is fetched together, and end with the block."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from own_items import Ascending, Faulty, Items

from mirrorkit.errors import DataError
from mirrorkit.fetching.fetcher import Fetcher

X = np.arange(100)[:, None]
Y = np.arange(100) % 7


def fetching() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("mirrorkit-fetch")]


@pytest.mark.parametrize("threads", [1, 3, 16])
@pytest.mark.parametrize("kind", [Items, lambda x, y: (Ascending(x), Ascending(y))])
def test_items_come_in_their_order_each_once(threads, kind):
    items = kind(X, Y)
    fetcher = Fetcher(items)
    fetched = items.fetched if isinstance(items, Items) else []
    fetched.clear()
    with fetcher.started(threads) as fetch:
        for numbers in ([7], [3, 4, 5], [*range(8, 100, 2)]):
            x, y = fetch(np.array(numbers))
            np.testing.assert_array_equal(x, X[numbers])
            np.testing.assert_array_equal(y, Y[numbers])
    assert len(set(fetched)) == len(fetched)
    assert not fetching()


def test_all_threads_work_at_the_same_time():
    together = threading.Barrier(8, timeout=60)

    class Meeting(Items):
        def __getitem__(self, number):
            if number:
                together.wait()
            return super().__getitem__(number)

    with Fetcher(Meeting(X, Y)).started(8) as fetch:
        assert len(fetch(np.arange(1, 17))[0]) == 16


def test_an_error_names_the_item():
    with (
        Fetcher(Faulty(25, ValueError("bad"))).started(4) as fetch,
        pytest.raises(DataError, match="item 25 of Faulty failed"),
    ):
        fetch(np.arange(20, 30))
