"""One pass over the data, for training or for evaluation: calls of many steps, their totals, the batch hooks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, NoReturn

import numpy as np
import tensorflow as tf

from mirrorkit.errors import CheckpointError, NonFiniteLossError, StepError
from mirrorkit.train.checkpoints.position import Position
from mirrorkit.train.loop.calls import CallLength
from mirrorkit.train.loop.feed import Feed
from mirrorkit.train.loop.hooks import agree_to_stop, periods
from mirrorkit.train.loop.report import Epoch, Report
from mirrorkit.train.loop.stream import Stream
from mirrorkit.variables import unchanged

_EXAMPLES = 0  # index into a step's totals


class Traced(NamedTuple):
    """A compiled function of a loop that was not run.

    Attributes:
        what: "train", "evaluate" or "predict", and whether it is for a smaller batch at the end of an epoch.
        function: the `tf.ConcreteFunction`.
        stream: whose source is its first argument; None for "predict", which takes a batch.
    """

    what: str
    function: Any
    stream: Stream | None


class Passes:
    """What a loop does with a step and an epoch's data.

    Args:
        strategy: the strategy for which `step` is built.
        step: a built `Step` or `CustomStep`.
        calls: its compiled functions, from `calls_for`.
        length: how many steps a call takes.
    """

    def __init__(self, strategy: tf.distribute.Strategy, step: Any, calls: Any, length: CallLength) -> None:
        self._strategy = strategy
        self._step = step
        self._calls = calls
        self._length = length

    @property
    def steps_per_call(self) -> int:
        """How many steps the next whole call takes."""
        return self._length.next(None)

    def train(
        self, feed: Feed, position: Position, hooks: Any, report: Report, *, resumed: bool, each_step: bool = False
    ) -> dict[str, Any]:
        """Train what is left of the position's epoch; move the position on, call by call. Returns the epoch's logs.

        Args:
            feed: the data.
            position: where to begin; a position within an epoch goes on there.
            hooks: a Keras callback list.
            report: gets the epoch and its calls.
            resumed: the epochs before were trained in another run.
            each_step: make calls of one step, or of one update; they teach nothing of how long a call should be.

        Raises:
            NonFiniteLossError: a callback that has `on_non_finite_loss(error, feed)` is called first.
        """
        totals = self._restored_totals(feed, position)
        together = self._step.accumulate
        check = self._step.first_batch_check()
        stream = feed.epoch(position.epoch, start=position.batch, resume=resumed, together=together, check=check)
        every = [1] if each_step else periods(hooks)
        record, logs = Epoch(examples=0, steps=0, seconds=0.0), self._logs(totals) if position.batch else {}
        while position.batch != feed.steps and not (position.batch and self._step.model.stop_training):
            steps = self._until_wanted(self._length.next(feed.left(position.batch)), position.steps, every)
            hooks.on_train_batch_begin(position.batch)
            result = self._calls.train(stream, totals, steps)
            if result.steps == 0:  # the end of data whose length nobody knew
                break
            if result.first_bad_step is not None:
                _raise_non_finite(result.first_bad_step, position, hooks, feed)
            examples = int(result.totals[_EXAMPLES]) - int(totals[_EXAMPLES])
            totals = result.totals
            if not each_step:
                self._length.learn(result.steps, result.seconds)
            report.throughput.record(examples=examples, steps=result.steps, seconds=result.seconds)
            record.add(examples, result.steps, result.seconds)
            logs = self._logs(totals)
            position.advance(result.steps, totals.numpy().tolist())
            hooks.on_train_batch_end(position.batch - 1, logs)
            agree_to_stop(self._strategy, self._step.model)
        if position.batch == 0:
            raise StepError(NO_BATCH)
        if record.steps:
            report.epochs.append(record)
        return dict(logs)

    def test(self, feed: Feed, hooks: Any, *, local: bool = False) -> dict[str, Any]:
        """Evaluate all the data from its beginning, perhaps `local` to the chief; returns the logs."""
        calls = self._calls.local if local else self._calls
        self._step.prepare(feed.element_spec)
        stream = feed.epoch(0, restart=True, together=1, check=self._step.first_batch_check("test"))
        totals, done = self._zeros(), 0
        hooks.on_test_begin()
        while done != feed.steps:
            hooks.on_test_batch_begin(done)
            result = calls.test(stream, totals, self._length.next(feed.left(done)))
            if result.steps == 0:
                break
            totals = result.totals
            done += result.steps
            hooks.on_test_batch_end(done - 1, self._logs(totals))
        if done == 0:
            raise StepError(NO_BATCH)
        logs = self._logs(totals)
        hooks.on_test_end(logs)
        return logs

    def rehearse(self, training: Feed, testing: Feed | None) -> None:
        """Run every function once or twice, and leave all variables as they were."""
        with unchanged(self._step.variables):
            self._step.prepare(training.element_spec)
            check = self._step.first_batch_check()
            if check is not None and (batch := training.first()) is not None:
                check(batch)
            for number, (stream, least) in enumerate(training.rehearsals(self._step.accumulate)):
                for steps in self._length.probes() if number == 0 else (least,):
                    result = self._calls.train(stream, self._zeros(), min(steps, stream.left or steps))
                    stream.position -= result.steps
                    self._length.learn(result.steps, result.seconds)
            for stream, _ in testing.rehearsals() if testing is not None else ():
                self._calls.test(stream, self._zeros(), 1)

    def traced(self, training: Feed, testing: Feed | None) -> Iterator[Traced]:
        """Trace every function without running one."""
        feeds = [("train", training, self._step.accumulate), *([] if testing is None else [("evaluate", testing, 1)])]
        for what, feed, together in feeds:
            self._step.prepare(feed.element_spec)
            names = iter([what, f"{what}, smaller batch"])
            for stream, steps in feed.rehearsals(together):
                for function in self._calls.functions(stream, steps, training=what == "train"):
                    yield Traced(next(names), function, stream)
        if testing is not None:
            yield Traced("predict", self._calls.predict_function(testing.element_spec), None)

    def _until_wanted(self, steps: int, done: int, every: list[int]) -> int:
        """Shorten a call so that it ends where a callback wants it to, but never within an update."""
        for period in every:
            until = period - done % period
            steps = min(steps, -(-until // self._step.accumulate) * self._step.accumulate)
        return steps

    def _restored_totals(self, feed: Feed, position: Position) -> tf.Tensor:
        self._step.prepare(feed.element_spec)
        if position.batch == 0:
            position.global_batch_size = feed.global_batch_size
            return self._zeros()
        if position.global_batch_size != feed.global_batch_size or len(position.totals) != self._step.totals_size:
            raise CheckpointError(
                f"The checkpoint was made after {position.batch} batches of {position.global_batch_size} examples with "
                f"{len(position.totals)} sums of loss and metrics; found batches of {feed.global_batch_size} and "
                f"{self._step.totals_size} sums. Finish epoch {position.epoch} (counted from 0) with the global batch "
                "size, loss and metrics that it began with; at the end of an epoch they may change."
            )
        return tf.constant(position.totals, tf.float64)

    def _zeros(self) -> tf.Tensor:
        return tf.zeros([self._step.totals_size], tf.float64)

    def _logs(self, totals: tf.Tensor) -> dict[str, Any]:
        values = {name: np.asarray(value) for name, value in self._step.logs(totals).items()}
        return {name: value.item() if value.ndim == 0 else value for name, value in values.items()}


NO_BATCH = "The data gave no batch. Check its path, filters and drop_remainder."


def _raise_non_finite(index: int, position: Position, hooks: Any, feed: Feed) -> NoReturn:
    step, epoch, batch = position.steps + index, position.epoch, position.batch + index
    error = NonFiniteLossError(
        f"The loss became NaN or infinite at training step {step} (epoch {epoch}, batch {batch} of it; all counted "
        "from 0). Lower the learning rate, give Step a clip_norm, or look for bad values in that batch.",
        step=step,
        epoch=epoch,
        batch=batch,
    )
    for callback in hooks.callbacks:
        if hasattr(callback, "on_non_finite_loss"):  # it may say more, by an error of its own
            callback.on_non_finite_loss(error, feed)
    raise error
