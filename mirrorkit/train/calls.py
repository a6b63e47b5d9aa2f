"""Compiled calls of many steps each: the device works through them without a look at Python in between."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import tensorflow as tf

from mirrorkit.train.share import HOST, own_share
from mirrorkit.train.update import first_replica

_CALL_SECONDS = 0.5  # what "auto" aims at: long enough to hide the dispatch, short enough for a progress bar
_PROBE_STEPS = 4


class Result(NamedTuple):
    """What a call of several steps returns; float64, so that an epoch's sums stay exact."""

    steps: int  # fewer than asked at the end of the data
    totals: tf.Tensor  # of all steps so far in this epoch
    first_bad_step: int | None  # index within the call of the first step whose loss was not finite
    seconds: float  # until the devices were done


class Calls:
    """The functions of a loop, each compiled once and called with any number of steps.

    Args:
        strategy: the strategy for which `step` is built.
        step: has `train(batch)` in cross-replica context and `test(batch)` on a replica, both giving totals, whose
            entry `step.loss_index` is not finite when the loss is not.
    """

    def __init__(self, strategy: tf.distribute.Strategy, step: Any) -> None:
        def train_one(batch: Any) -> tf.Tensor:
            return step.train(batch)

        def test_one(batch: Any) -> tf.Tensor:
            sums = strategy.run(lambda batch: step.test(own_share(batch)), args=(batch,))
            return strategy.reduce(tf.distribute.ReduceOp.SUM, sums, axis=None)

        self._train = _many(train_one, step)
        self._test = _many(test_one, step)

        def predict_one(batch: Any) -> Any:
            return strategy.run(lambda batch: step.predict(own_share(batch)), args=(batch,))

        self._predict = tf.function(predict_one, autograph=False)
        self._strategy = strategy

    def train(self, iterator: Iterator[Any], totals: tf.Tensor, steps: int) -> Result:
        """Train on the next `steps` batches, or as many as are left, adding to `totals`."""
        return _timed(self._train, iterator, totals, steps)

    def test(self, iterator: Iterator[Any], totals: tf.Tensor, steps: int) -> Result:
        """Evaluate the next `steps` batches, or as many as are left, adding to `totals`."""
        return _timed(self._test, iterator, totals, steps)

    def predict(self, batch: Any) -> list[Any]:
        """Return the outputs for one global batch, one nest for each replica, in order."""
        outputs = self._predict(batch)
        parts = [self._strategy.experimental_local_results(value) for value in tf.nest.flatten(outputs)]
        return [tf.nest.pack_sequence_as(first_replica(self._strategy, outputs), p) for p in zip(*parts, strict=True)]


def _many(one: Any, step: Any) -> Any:
    # AutoGraph would rewrite the user's code too, and with it the errors that it raises.
    @tf.function(autograph=False)
    def many(iterator: Any, totals: tf.Tensor, steps: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        def fetch(index: tf.Tensor) -> Any:
            # An optional, since at the end of the data `next` would raise in the midst of a half-done step.
            with tf.device(HOST):
                nothing = tf.experimental.Optional.empty(iterator.element_spec)
                return tf.cond(index < steps, iterator.get_next_as_optional, lambda: nothing)

        def body(index: tf.Tensor, batch: Any, totals: tf.Tensor, bad: tf.Tensor) -> tuple[Any, ...]:
            with tf.device(HOST):
                value = batch.get_value()
            step_totals = tf.cast(one(value), tf.float64)
            newly_bad = (bad < 0) & ~tf.math.is_finite(step_totals[step.loss_index])
            return index + 1, fetch(index + 1), totals + step_totals, tf.where(newly_bad, index, bad)

        none_yet = tf.constant(0, tf.int64)
        start = (none_yet, fetch(none_yet), totals, tf.constant(-1, tf.int64))
        index, _, totals, bad = tf.while_loop(lambda index, batch, *_: batch.has_value(), body, start)
        return index, totals, bad

    return many


def _timed(function: Any, iterator: Iterator[Any], totals: tf.Tensor, steps: int) -> Result:
    start = time.perf_counter()
    done, totals, bad = function(iterator, totals, tf.constant(steps, tf.int64))
    first_bad = int(bad)  # waits for the call to end
    return Result(int(done), totals, None if first_bad < 0 else first_bad, time.perf_counter() - start)


class CallLength:
    """How many steps a call takes: what the user said, or about half a second's worth, found from the first calls.

    Args:
        asked: a number, or "auto".
    """

    def __init__(self, asked: int | str) -> None:
        self._auto = asked == "auto"
        self._steps = 1 if self._auto else int(asked)
        self._calls = 0

    def next(self, left: int | None) -> int:
        """Return the length of the next call when `left` steps remain, or None where nobody knows how many do."""
        return self._steps if left is None else min(self._steps, left)

    def probes(self) -> tuple[int, ...]:
        """Return the lengths of the calls with which to rehearse: one that compiles, and one to learn from."""
        return (1, _PROBE_STEPS) if self._auto and self._calls < 2 else (1,)

    def learn(self, steps: int, seconds: float) -> None:
        """Take in how long a call of `steps` took: the first compiles, the second is a probe, the third decides."""
        self._calls += 1
        if self._auto and self._calls == 1:
            self._steps = _PROBE_STEPS
        elif self._auto and self._calls == 2:
            self._steps = max(1, round(_CALL_SECONDS * steps / max(seconds, 1e-6)))
