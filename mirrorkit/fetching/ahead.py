"""Batches that threads fetch ahead, in their order."""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from mirrorkit.fetching.fetcher import Fetcher
from mirrorkit.fetching.forms import empty


def fetched(source: Fetcher, batches: Iterable[np.ndarray], *, threads: int) -> Iterator[list[np.ndarray]]:
    """Yield the arrays of each batch, the leaves of the form, while the next batches are fetched.

    Args:
        source: fetches the items.
        batches: the numbers of the items of each batch.
        threads: how many threads share the items of a batch; each of them has something to do while one batch is waited
            for.
    """
    with source.started() as (fill, stop), contextlib.ExitStack() as stack:
        executor = ThreadPoolExecutor(threads, thread_name_prefix="mirrorkit-fetch")
        # In the end nobody uses the object any more: at most what each thread is fetching is waited for. Items stop
        # between two of them; rows of arrays that no thread has begun to read are cancelled.
        stack.callback(executor.shutdown, cancel_futures=True)
        stack.callback(stop)
        under_way: collections.deque[tuple[int, list[np.ndarray], list[Future[None]]]] = collections.deque()
        items = 0  # that are under way
        for numbers in batches:
            out = empty(source.form, len(numbers))
            # Those of one thread lie together: as HDF5 wants them, and nobody else unpacks the same part of a file.
            parts = [part for part in np.array_split(np.argsort(numbers), threads) if len(part)]
            under_way.append((len(numbers), out, [executor.submit(fill, numbers[rows], rows, out) for rows in parts]))
            items += len(numbers)
            while items - under_way[0][0] >= threads:  # there is something for each, while the first one is waited for
                size, out, awaited = under_way.popleft()
                yield _filled(out, awaited)
                items -= size
        while under_way:
            yield _filled(*under_way.popleft()[1:])


def _filled(out: list[np.ndarray], parts: list[Future[None]]) -> list[np.ndarray]:
    for part in parts:
        part.result()
    return out
