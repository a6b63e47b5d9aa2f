"""Train an epoch's batches once more, update by update, and look at their rows."""

from __future__ import annotations

from dataclasses import dataclass

import tensorflow as tf

from mirrorkit._types import Batch, Nest
from mirrorkit.train.calls.compiled import Calls
from mirrorkit.train.input.epoch import EpochIterator
from mirrorkit.train.step.loop_step import LoopStep


@dataclass(frozen=True)
class Replay:
    """A walk through an epoch's batches, from some batch on; made by `Loop.replay`."""

    _strategy: tf.distribute.Strategy
    _step: LoopStep
    _calls: Calls
    _data: EpochIterator

    @property
    def batch(self) -> int:
        """Number of the next batch in its epoch."""
        return self._data.position

    def update(self) -> bool:
        """Train on the next update's batches; False where the data has ended."""
        totals = tf.zeros([self._step.totals_size()], tf.float64)
        return self._calls.train(self._data, totals, self._batches()).steps > 0

    def rows(self) -> list[list[Batch]]:
        """Return, for each batch of the next update, the replicas' rows; it moves on in data that the host reads."""

        @tf.function(autograph=False)
        def take(source: Nest, index: tf.Tensor, size: int | None) -> Nest:
            return self._strategy.run(self._data.batch(source, index, size).rows)

        found = []
        for index in range(self.batch, self.batch + self._batches()):
            nest = take(self._data.source, tf.constant(index), self._data.size_of(index))
            parts = [self._strategy.experimental_local_results(value) for value in tf.nest.flatten(nest)]
            found.append([tf.nest.pack_sequence_as(nest, part) for part in zip(*parts, strict=True)])
        return found

    def _batches(self) -> int:
        accumulate, left = self._step.accumulate, self._data.left
        return accumulate if left is None else min(accumulate, left)
