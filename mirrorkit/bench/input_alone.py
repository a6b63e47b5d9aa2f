"""The input without a training: batches are made, cut and brought to the devices, and nothing else happens."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from mirrorkit._types import Batch, Nest
from mirrorkit.strategy import of_all_workers
from mirrorkit.train import EpochIterator, Input

_SECONDS = 0.25  # of one measurement, about
_MOST = 1000  # batches in it, where the data does not say how many there are


class Epochs:
    """The batches of a set that have the size of its first one, epoch after epoch.

    A smaller batch at the end of an epoch is left out: measurements are compared with those of a step on a whole one.
    """

    def __init__(self, strategy: tf.distribute.Strategy, data: Any) -> None:
        self._input = Input(strategy, data)
        self.element_spec = self._input.element_spec
        self._number = 0
        self._epoch = self._input.epoch(0)
        self._alike = _alike(self._epoch)
        self.most = _MOST if self._alike is None else self._alike

    def with_left(self, batches: int) -> EpochIterator:
        """Return the current epoch, or the next one if fewer than `batches` are left in it."""
        if self._alike is not None and self._epoch.position + batches > self._alike:
            self._number += 1
            self._epoch = self._input.epoch(self._number)
        return self._epoch


class InputAlone:
    """Reads the batches of a set; on several workers, each what it reads in a training.

    Attributes:
        rows: each replica's rows of the first batch, on its device.
        own: how many rows of a batch this worker's replicas take.
        most: how many batches can be read at once.
    """

    def __init__(self, strategy: tf.distribute.Strategy, data: Any) -> None:
        self._strategy = strategy
        self._epochs = Epochs(strategy, data)
        self.most = self._epochs.most
        first = self._epochs.with_left(1)
        self._take, self._size = first.batch, first.size_of(0)
        self.rows = self._first_rows(first.source)
        first.advance(1)
        of_replicas = strategy.experimental_local_results(tf.nest.flatten(self.rows)[0])
        self.own = sum(int(tf.shape(rows)[0]) for rows in of_replicas)
        self._read = tf.function(self._many, autograph=False)

    def seconds(self, batches: int) -> float:
        """Return the seconds that this worker takes to read this many batches."""
        epoch = self._epochs.with_left(batches)
        start = time.perf_counter()
        float(self._read(epoch.source, tf.constant(epoch.position, tf.int64), tf.constant(batches, tf.int64)))
        seconds = time.perf_counter() - start
        epoch.advance(batches)
        return seconds

    def rates(self, *, repeats: int = 5) -> list[float]:
        """Return, for each worker, the examples per second that reach its replicas. Collective."""
        self.seconds(1)  # compiles
        few = min(2, self.most)
        batches = max(1, min(self.most, round(_SECONDS * few / self.seconds(few))))
        self.seconds(batches)  # what was prefetched before a measurement must not count as fast input
        timed = []
        for _ in range(repeats):
            of_all_workers(self._strategy, 0.0)  # all read at the same time, as in a training
            timed.append(self.seconds(batches))
        return of_all_workers(self._strategy, self.own * batches / min(timed))

    def _first_rows(self, source: Nest) -> Batch:
        @tf.function(autograph=False)
        def rows(source: Nest) -> Batch:
            return self._strategy.run(self._take(source, tf.constant(0, tf.int64), self._size).rows)

        return rows(source)

    def _many(self, source: Nest, first: tf.Tensor, batches: tf.Tensor) -> tf.Tensor:
        def read(index: tf.Tensor, last: Any) -> Any:
            batch = self._take(source, first + index, self._size)
            return self._strategy.run(lambda: touched(batch.rows()))

        return of_this_worker(self._strategy, repeated(self._strategy, read, batches))


def repeated(strategy: tf.distribute.Strategy, once: Callable[[tf.Tensor, Any], Any], times: tf.Tensor) -> Any:
    """Call `once(index, last)` `times` times in sequence, within a `tf.function`, and return the last result.

    A result is a float32 number on each replica; `last` is the previous one, 0 at first.
    """

    def body(index: tf.Tensor, last: Any) -> tuple[Any, ...]:
        return index + 1, once(index, last)

    start = (tf.zeros([], times.dtype), strategy.run(lambda: tf.zeros([])))
    return tf.while_loop(lambda index, _: index < times, body, start, parallel_iterations=1)[1]


def touched(values: Any) -> tf.Tensor:
    """Return one number that depends on every tensor, so that TensorFlow does not leave any out."""
    firsts = [tf.reshape(value, [-1])[:1] for value in tf.nest.flatten(values)]  # of no rows, none
    return tf.add_n([tf.reduce_sum(tf.cast(first, tf.float32)) for first in firsts])


def of_this_worker(strategy: tf.distribute.Strategy, values: Any) -> tf.Tensor:
    """Return the sum over this worker's replicas: over those of all, each worker would take as long as the slowest."""
    return tf.add_n(strategy.experimental_local_results(values))


def _alike(epoch: EpochIterator) -> int | None:
    """Return how many batches of an epoch have the size of the first; None where the number of batches is unknown."""
    if epoch.left is None:
        return None
    size = epoch.size_of(0)
    return sum(1 for _ in itertools.takewhile(lambda number: epoch.size_of(number) == size, range(epoch.left)))
