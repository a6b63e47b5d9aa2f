"""Variants of a training step that leave parts out, each compiled into calls of many steps."""

from __future__ import annotations

import time
from typing import Any

import tensorflow as tf

from mirrorkit._types import Batch, Nest
from mirrorkit.strategy import local_replica, of_all_workers
from mirrorkit.train import Calls, EpochIterator, Input, OwnRows, Step, all_reduce


class Variants:
    """What is timed; `seconds` takes one of `names`.

    | name | what runs |
    |---|---|
    | whole | the step on the data |
    | input | the data alone: batches are made, cut and brought to the devices |
    | fixed | the step on one batch that lies on the devices |
    | reduce | the same without the update |
    | compute | the same without the reduction too |
    """

    names = ("whole", "input", "fixed", "reduce", "compute")

    def __init__(self, strategy: tf.distribute.Strategy, step: Step, data: Any) -> None:
        self._strategy = strategy
        self._step = step.for_loop(strategy)
        self._inputs = {name: Input(strategy, data) for name in ("whole", "input")}
        self._step.prepare(self._inputs["whole"].element_spec)
        self._calls = Calls(strategy, self._step)
        self._epochs = 0
        self._data = {name: inputs.epoch(0) for name, inputs in self._inputs.items()}
        left = self._data["whole"].left
        self.most = max(1, (1000 if left is None else left) // step.accumulate)
        self._rows = self._first_rows(next(self._inputs["whole"].rehearsals())[0])
        self._input = self._input_alone(self._data["input"])
        self._variants = {
            "fixed": self._many(self._fixed),
            "reduce": self._many(lambda rows: self._sums(rows, reduce=True)),
            "compute": self._many(lambda rows: self._sums(rows, reduce=False)),
        }

    def seconds(self, name: str, steps: int) -> float:
        """Return seconds per step (per update, where it takes several batches) of a call of so many."""
        of_all_workers(self._strategy, 0.0)  # all begin at once: a worker's seconds hold no wait for a late one
        if name in self._data:
            batches = steps * self._step.accumulate
            self._from_data(name, batches)  # what was prefetched before the measurement must not count as fast input
            return self._from_data(name, batches) / steps
        start = time.perf_counter()
        float(self._variants[name](self._rows, tf.constant(steps)))  # waits for the end
        return (time.perf_counter() - start) / steps

    def _from_data(self, name: str, batches: int) -> float:
        left = self._data[name].left
        if left is not None and left < batches:
            self._epochs += 1
            self._data[name] = self._inputs[name].epoch(self._epochs)
        data = self._data[name]
        if name == "whole":
            return self._calls.train(data, tf.zeros([self._step.totals_size()], tf.float64), batches).seconds
        start = time.perf_counter()
        float(self._input(data.source, tf.constant(data.position, tf.int64), tf.constant(batches, tf.int64)))
        data.advance(batches)
        return time.perf_counter() - start

    def _first_rows(self, data: EpochIterator) -> Batch:
        """Return each replica's rows of the first batch, on its device."""

        @tf.function(autograph=False)
        def rows(source: Nest) -> Batch:
            return self._strategy.run(data.batch(source, tf.constant(0, tf.int64), data.size_of(0)).rows)

        return rows(data.source)

    def _input_alone(self, data: EpochIterator) -> Any:
        size = data.size_of(0)

        @tf.function(autograph=False)
        def many(source: Nest, first: tf.Tensor, batches: tf.Tensor) -> tf.Tensor:
            def body(index: tf.Tensor, last: Any) -> tuple[Any, ...]:
                batch = data.batch(source, first + index, size)
                return index + 1, self._strategy.run(lambda: _touched(batch.rows()))

            start = (tf.constant(0, tf.int64), self._strategy.run(lambda: tf.zeros([])))
            _, last = tf.while_loop(lambda index, _: index < batches, body, start, parallel_iterations=1)
            return self._own(last)

        return many

    def _many(self, one: Any) -> Any:
        @tf.function(autograph=False)
        def many(rows: Any, steps: tf.Tensor) -> tf.Tensor:
            def body(index: tf.Tensor, last: Any, rows: Any) -> tuple[Any, ...]:
                with tf.control_dependencies([index]):
                    return index + 1, one(rows), rows

            start = (tf.constant(0), self._strategy.run(lambda: tf.zeros([])), rows)
            _, last, _ = tf.while_loop(lambda index, *_: index < steps, body, start, parallel_iterations=1)
            return self._own(last)

        return many

    def _own(self, last: Any) -> tf.Tensor:
        """The sum over this worker's replicas: over those of all, each worker would take as long as the slowest."""
        return tf.add_n(self._strategy.experimental_local_results(last))

    def _fixed(self, rows: Batch) -> Any:
        totals = self._step.train([_Fixed(self._strategy, rows)] * self._step.accumulate)
        return self._strategy.run(lambda: tf.cast(totals[0], tf.float32))

    def _sums(self, rows: Batch, *, reduce: bool) -> Any:
        def on_replica(rows: Batch) -> tf.Tensor:
            parts = [self._step.sums(OwnRows(rows), part) for part in range(self._step.accumulate)]
            return _touched([*parts[:-1], all_reduce(parts[-1]) if reduce else parts[-1]])

        return self._strategy.run(on_replica, args=(rows,))


class _Fixed(OwnRows):
    """Rows that lie on every replica's device already: values of the strategy, of which each replica takes its own."""

    def __init__(self, strategy: tf.distribute.Strategy, rows: Batch) -> None:
        super().__init__(rows)
        self._strategy = strategy

    def rows(self) -> Batch:
        """Return this replica's."""
        own = [self._strategy.experimental_local_results(value) for value in tf.nest.flatten(self._rows)]
        return tf.nest.pack_sequence_as(self._rows, [values[local_replica(self._strategy)] for values in own])

    def rows_or_all(self) -> tuple[Batch, bool | tf.Tensor]:
        """Return this replica's; they are as many on each."""
        return self.rows(), False


def _touched(values: Any) -> tf.Tensor:
    """One number that depends on every tensor, so that TensorFlow does not leave any out."""
    return tf.add_n([tf.cast(tf.reshape(value, [-1])[0], tf.float32) for value in tf.nest.flatten(values)])
