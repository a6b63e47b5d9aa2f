"""Variants of a training step that leave parts out, each compiled into calls of many steps."""

from __future__ import annotations

import time
from typing import Any

import tensorflow as tf

from mirrorkit.strategy import of_all_workers
from mirrorkit.train.loop.calls import Calls
from mirrorkit.train.loop.feed import Feed
from mirrorkit.train.loop.stream import Stream
from mirrorkit.train.reduce.reduction import all_reduce


class Variants:
    """What is timed; `seconds` takes one of `names`.

    | name | what runs |
    |---|---|
    | whole | the step on the data |
    | input | the data alone: batches are made, cut and brought to the devices |
    | fixed | the step on one batch that lies on the devices |
    | reduce | the same without the update |
    | compute | the same without the reduction too |

    Args:
        strategy: of the loop.
        step: a built `mk.train.Step`.
        data: what `fit` is given.
    """

    names = ("whole", "input", "fixed", "reduce", "compute")

    def __init__(self, strategy: tf.distribute.Strategy, step: Any, data: Any) -> None:
        self._strategy = strategy
        self._step = step
        self._feed = Feed(strategy, data)
        step.prepare(self._feed.element_spec)
        self._calls = Calls(strategy, step)
        self._epochs = 0
        self._streams = {"whole": self._feed.epoch(0), "input": self._feed.epoch(0)}
        left = self._streams["whole"].left
        self.most = max(1, (1000 if left is None else left) // step.accumulate)
        self._rows = self._first_rows(next(self._feed.rehearsals())[0])
        self._input = self._input_alone(self._streams["input"])
        self._variants = {
            "fixed": self._many(self._fixed),
            "reduce": self._many(lambda rows: self._sums(rows, reduce=True)),
            "compute": self._many(lambda rows: self._sums(rows, reduce=False)),
        }

    def seconds(self, name: str, steps: int) -> float:
        """Return seconds per step (per update, where it takes several batches) of a call of so many."""
        of_all_workers(self._strategy, 0.0)  # all begin at once: a worker's seconds hold no wait for a late one
        if name in self._streams:
            batches = steps * self._step.accumulate
            self._from_stream(name, batches)  # what was made ahead while nobody asked must not count as fast input
            return self._from_stream(name, batches) / steps
        start = time.perf_counter()
        float(self._variants[name](self._rows, tf.constant(steps)))  # waits for the end
        return (time.perf_counter() - start) / steps

    def _from_stream(self, name: str, batches: int) -> float:
        left = self._streams[name].left
        if left is not None and left < batches:
            self._epochs += 1
            self._streams[name] = self._feed.epoch(self._epochs)
        stream = self._streams[name]
        if name == "whole":
            return self._calls.train(stream, tf.zeros([self._step.totals_size], tf.float64), batches).seconds
        start = time.perf_counter()
        float(self._input(stream.source, tf.constant(stream.position, tf.int64), tf.constant(batches, tf.int64)))
        stream.position += batches
        return time.perf_counter() - start

    def _first_rows(self, stream: Stream) -> Any:
        """Return each replica's rows of the first batch, on its device."""
        _, sizes = next(iter(stream.parts(1)))

        @tf.function(autograph=False)
        def rows(source: Any) -> Any:
            batch, share = stream.take(source, tf.constant(0, tf.int64), sizes[0])
            return self._strategy.run(lambda batch: share(batch), args=(batch,))

        return rows(stream.source)

    def _input_alone(self, stream: Stream) -> Any:
        _, sizes = next(iter(stream.parts(1)))

        def on_replica(share: Any, batch: Any) -> tf.Tensor:
            return _touched(share(batch))

        @tf.function(autograph=False)
        def many(source: Any, first: tf.Tensor, batches: tf.Tensor) -> tf.Tensor:
            def body(index: tf.Tensor, last: Any) -> tuple[Any, ...]:
                batch, share = stream.take(source, first + index, sizes[0])
                return index + 1, self._strategy.run(lambda batch: on_replica(share, batch), args=(batch,))

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

    def _fixed(self, rows: Any) -> Any:
        if self._step.accumulate == 1:
            totals = self._step.train(rows, share=_as_it_is)
        else:
            for part in range(self._step.accumulate):
                self._step.add(rows, part, share=_as_it_is)
            totals = self._step.finish()
        return self._strategy.run(lambda: tf.cast(totals[0], tf.float32))

    def _sums(self, rows: Any, *, reduce: bool) -> Any:
        def on_replica(rows: Any) -> tf.Tensor:
            parts = [self._step.compute(rows, part) for part in range(self._step.accumulate)]
            return _touched([*parts[:-1], all_reduce(parts[-1]) if reduce else parts[-1]])

        return self._strategy.run(on_replica, args=(rows,))


def _touched(values: Any) -> tf.Tensor:
    """One number that depends on every tensor, so that TensorFlow does not leave out what nobody would need."""
    return tf.add_n([tf.cast(tf.reshape(value, [-1])[0], tf.float32) for value in tf.nest.flatten(values)])


def _as_it_is(rows: Any) -> Any:
    return rows
