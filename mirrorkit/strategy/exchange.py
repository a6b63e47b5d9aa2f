"""Numbers that all workers tell each other, and on which they agree."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from mirrorkit.arguments import checks_arguments
from mirrorkit.errors import ArgumentError, ClusterError
from mirrorkit.strategy.lost import naming_lost_workers
from mirrorkit.strategy.workers import by_worker, first_replica, num_workers, worker_index

_PLACE = 96  # bytes of the name of a place in a message
_SMALL = 64  # numbers in the first message
_place = contextvars.ContextVar("place", default="a call of your own")


@checks_arguments(ArgumentError)
def of_all_workers(strategy: tf.distribute.Strategy, value: float | bool) -> list[float]:
    """Return the values of all workers in their order, the chief's first; float64.

    ```python
    slowest = max(mk.strategy.of_all_workers(strategy, 0.25))
    ```

    Collective: every worker must call it, and waits for the others (2 ms on one machine). `[0]` is the chief's value;
    `max` says whether any worker wants to stop.

    Raises:
        ArgumentError: the value is not one number.
        ClusterError: another worker is gone, or calls something else that all must call, such as `Loop.evaluate`.
    """
    number = np.asarray(value)
    if number.ndim or number.dtype.kind not in "biuf":
        raise ArgumentError(f"of_all_workers takes one number of each worker, found {value!r}.")
    return list(map(float, arrays_of_all_workers(strategy, number.astype(np.float64))))


def arrays_of_all_workers(strategy: tf.distribute.Strategy, value: np.ndarray) -> np.ndarray:
    """Return the arrays of all workers, of one shape, in their order; float64. Collective, as `of_all_workers`.

    The first message has one size whatever is sent, and says at which `place` of the program a worker is.

    Raises:
        ClusterError: the workers are at different places, or send arrays of different sizes.
    """
    workers = num_workers(strategy)
    if workers == 1:
        return np.array(value, np.float64)[np.newaxis]
    flat = value.ravel()
    here = _place.get().encode()
    head = [flat.size, zlib.crc32(here), *_words(here, _PLACE)]
    first = _exchanged(strategy, np.concatenate([head, flat[: _SMALL - len(head)]]), _SMALL)
    heads, found = np.split(first, [len(head)], axis=1)
    if (heads != heads[0]).any():
        raise ClusterError(_at_different_places(strategy, heads))
    if flat.size > found.shape[1]:
        size = _SMALL  # few different ones, since each is traced
        while size < flat.size:
            size *= 4
        found = _exchanged(strategy, flat, size)
    return found[:, : flat.size].reshape((workers, *value.shape))


def bytes_of_all_workers(strategy: tf.distribute.Strategy, data: bytes, most: int) -> list[bytes]:
    """Return the bytes of all workers in their order, `most` of each, with zeros where there are fewer. Collective."""
    rows = arrays_of_all_workers(strategy, _words(data, most))
    return [row.astype(np.uint32).tobytes()[:most] for row in rows]


def _words(data: bytes, size: int) -> np.ndarray:
    """Return bytes as numbers, as many as `size` bytes take."""
    return np.frombuffer(data[:size].ljust(-(-size // 4) * 4, b"\0"), np.uint32).astype(np.float64)


@contextlib.contextmanager
def place(name: str) -> Iterator[None]:
    """Name this part of the program, such as "Loop.evaluate", for the error of workers that are at another one."""
    before = _place.set(name)
    try:
        yield
    finally:
        _place.reset(before)


def each_worker(strategy: tf.distribute.Strategy, value: tf.Tensor) -> tf.Tensor:
    """Return each worker's boolean, bool [workers]; within a compiled function. Collective."""
    if num_workers(strategy) == 1:
        return value[tf.newaxis]
    own = tf.one_hot(worker_index(strategy), num_workers(strategy)) * tf.cast(value, tf.float32)
    return sum_over_workers(strategy, own) > 0


def sum_over_workers(strategy: Any, value: tf.Tensor) -> tf.Tensor:
    """Return the sum of the workers' tensors, of one shape; within a compiled function. Collective."""
    replicas_here = strategy.num_replicas_in_sync // num_workers(strategy)

    def on_replica(value: tf.Tensor) -> tf.Tensor:
        context = tf.distribute.get_replica_context()
        counts = context.replica_id_in_sync_group % replicas_here == 0  # once for each worker
        return context.all_reduce(tf.distribute.ReduceOp.SUM, tf.where(counts, value, tf.zeros_like(value)))

    return first_replica(strategy, strategy.run(on_replica, args=(value,)))


def _at_different_places(strategy: tf.distribute.Strategy, heads: np.ndarray) -> str:
    names = (head[2:].astype(np.uint32).tobytes().rstrip(b"\0") for head in heads)
    places = [name.decode(errors="replace") for name in names]
    if len(set(places)) == 1:
        places = [f"{name} with {int(head[0])} numbers to compare" for name, head in zip(places, heads, strict=True)]
    return (
        f"The workers are not at the same place of the program: {by_worker(strategy, places)}. All of them, not only "
        "the chief (as in a callback with chief_only = True), must make the collective calls (fit, evaluate, predict, "
        "warm_up, export, wait_for_all, of_all_workers) in the same order."
    )


def _exchanged(strategy: tf.distribute.Strategy, own: np.ndarray, size: int) -> np.ndarray:
    every = np.zeros((num_workers(strategy), size))
    every[worker_index(strategy), : own.size] = own
    with naming_lost_workers(strategy):
        return np.asarray(_sum_over_workers(strategy, size)(tf.constant(every)))


@functools.cache
def _sum_over_workers(strategy: Any, size: int) -> Any:
    """Return what adds up tensors [workers, size]; a collective operation keeps the shape that it had first."""
    add = tf.function(functools.partial(sum_over_workers, strategy), autograph=False)
    return add.get_concrete_function(tf.TensorSpec([num_workers(strategy), size], tf.float64))
