"""Train an epoch's batches once more, update by update, and look at their rows."""

from __future__ import annotations

import tensorflow as tf

from mirrorkit._types import Batch, Nest
from mirrorkit.strategy import by_replica
from mirrorkit.train.loop.fit import Fit


class Replay:
    """A walk through an epoch of a fit that is running, to train on its batches or look at them again, one by one.

    The caller restores weights and optimizer; position and report of the fit do not change. For `mk.checks.NanWatch`.

    Args:
        fit: the fit.
        epoch: one that has begun.
        batch: the first batch, in that epoch.
    """

    def __init__(self, fit: Fit, epoch: int, batch: int) -> None:
        self._passes, self._strategy, self._data = fit.passes, fit.strategy, fit.data.epoch(epoch, start=batch)

    @property
    def batch(self) -> int:
        """Number of the next batch in its epoch."""
        return self._data.position

    def update(self) -> bool:
        """Train on the next update's batches; False where the data has ended."""
        return self._passes.calls.call("train", self._data, self._passes.zeros(), self._batches()).steps > 0

    def rows(self) -> list[list[Batch]]:
        """Return, for each batch of the next update, the replicas' rows; it moves on in data that the host reads."""

        @tf.function(autograph=False)
        def take(source: Nest, index: tf.Tensor, size: int | None) -> Nest:
            return self._strategy.run(self._data.batch(source, index, size).rows)

        found = []
        for index in range(self.batch, self.batch + self._batches()):
            nest = take(self._data.source, tf.constant(index), self._data.size_of(index))
            found.append(by_replica(self._strategy, nest))
        return found

    def _batches(self) -> int:
        accumulate, left = self._passes.step.accumulate, self._data.left
        return accumulate if left is None else min(accumulate, left)
