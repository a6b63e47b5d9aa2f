"""Variants of a training step that leave parts out, each compiled into calls of many steps."""

from __future__ import annotations

import time
from typing import Any

import tensorflow as tf

from mirrorkit._types import Batch
from mirrorkit.bench.input_alone import Epochs, InputAlone, of_this_worker, repeated, touched
from mirrorkit.errors import StepError
from mirrorkit.strategy import local_replica, of_all_workers
from mirrorkit.train import Calls, OwnRows, Step, all_reduce

_MOST = 1000  # steps of a call


class Variants:
    """What is timed; `seconds` takes one of `names`.

    | name | what runs |
    |---|---|
    | whole | the step on the data |
    | input | the data alone: batches are made, cut and brought to the devices |
    | fixed | the step on one batch that lies on the devices |
    | reduce | the same without the update |
    | compute | the same without the reduction too |

    `own` is the number of rows that this worker's replicas take in a step.
    """

    names = ("whole", "input", "fixed", "reduce", "compute")

    def __init__(self, strategy: tf.distribute.Strategy, step: Step, data: Any) -> None:
        self._strategy = strategy
        self._step = step.supervised(strategy)
        self._epochs = Epochs(strategy, data)
        self._step.prepare(self._epochs.element_spec)
        self._calls = Calls(strategy, self._step)
        self._input = InputAlone(strategy, data)
        self.own = self._input.own * step.accumulate
        self._updates = min(_MOST, self._epochs.most // step.accumulate)  # of one epoch
        if self._updates == 0:
            raise StepError(
                f"anatomy times updates of {step.accumulate} whole batches each (accumulate={step.accumulate}); an "
                f"epoch has {self._epochs.most}. Give it more data, or a smaller global batch."
            )
        self._variants = {
            "fixed": self._many(self._fixed),
            "reduce": self._many(lambda rows: self._sums(rows, reduce=True)),
            "compute": self._many(lambda rows: self._sums(rows, reduce=False)),
        }

    def most(self, name: str) -> int:
        """Return the largest number of steps in a call."""
        return _MOST if name in self._variants else self._updates

    def seconds(self, name: str, steps: int) -> float:
        """Return the seconds per step (per update, where it takes several batches) of a call of `steps` steps."""
        of_all_workers(self._strategy, 0.0)  # all begin at once: a worker's seconds hold no wait for a late one
        if name not in self._variants:
            batches = steps * self._step.accumulate
            read = self._train if name == "whole" else self._input.seconds
            read(batches)  # what was prefetched before the measurement must not count as fast input
            return read(batches) / steps
        start = time.perf_counter()
        float(self._variants[name](self._input.rows, tf.constant(steps)))  # waits for the end
        return (time.perf_counter() - start) / steps

    def _train(self, batches: int) -> float:
        totals = tf.zeros([self._step.totals_size()], tf.float64)
        return self._calls.train(self._epochs.with_left(batches), totals, batches).seconds

    def _many(self, one: Any) -> Any:
        @tf.function(autograph=False)
        def many(rows: Any, steps: tf.Tensor) -> tf.Tensor:
            def once(index: tf.Tensor, last: Any) -> Any:
                with tf.control_dependencies([index]):
                    return one(rows)

            return of_this_worker(self._strategy, repeated(self._strategy, once, steps))

        return many

    def _fixed(self, rows: Batch) -> Any:
        totals = self._step.train([_Fixed(self._strategy, rows)] * self._step.accumulate)
        return self._strategy.run(lambda: tf.cast(totals[0], tf.float32))

    def _sums(self, rows: Batch, *, reduce: bool) -> Any:
        def on_replica(rows: Batch) -> tf.Tensor:
            parts = [self._step.sums(OwnRows(rows), part) for part in range(self._step.accumulate)]
            return touched([*parts[:-1], all_reduce(parts[-1]) if reduce else parts[-1]])

        return self._strategy.run(on_replica, args=(rows,))


class _Fixed(OwnRows):
    """Rows that lie on every replica's device already: values of the strategy, of which each replica takes its own."""

    def __init__(self, strategy: tf.distribute.Strategy, rows: Batch) -> None:
        self._rows, self._strategy = rows, strategy  # not as OwnRows sets them, which compares tensors

    def rows(self) -> Batch:
        """Return this replica's."""
        own = [self._strategy.experimental_local_results(value) for value in tf.nest.flatten(self._rows)]
        return tf.nest.pack_sequence_as(self._rows, [values[local_replica(self._strategy)] for values in own])

    def examples(self) -> tf.Tensor:
        """Return the number of examples; they are as many on each replica."""
        (own, *_) = tf.nest.flatten(self.rows())
        return tf.shape(own)[0] * self._strategy.num_replicas_in_sync

    def rows_or_all(self) -> tuple[Batch, bool | tf.Tensor]:
        """Return this replica's; they are as many on each."""
        return self.rows(), False
