"""One run of `Loop.fit`: its epochs, the calls of many steps in each, their totals, the hooks of the callbacks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from mirrorkit._keras import keras
from mirrorkit._types import KerasCallback
from mirrorkit.errors import NonFiniteLossError
from mirrorkit.strategy import num_workers
from mirrorkit.train.callback import tell_non_finite
from mirrorkit.train.calls.errors import require_examples
from mirrorkit.train.checkpoints.callback_states import CallbackStates
from mirrorkit.train.checkpoints.position import Position
from mirrorkit.train.input.epoch import EpochIterator
from mirrorkit.train.input.input import Input
from mirrorkit.train.loop.callbacks import agree_to_stop
from mirrorkit.train.loop.finite import FiniteWatch
from mirrorkit.train.loop.passes import EXAMPLES, Passes
from mirrorkit.train.loop.report import Epoch, Report
from mirrorkit.train.loop.resumed import begin_epoch, call_epoch_begin, require_same_epoch
from mirrorkit.train.loop.validation import Validation


@dataclass
class Fit:
    """A fit that is running.

    Attributes:
        strategy: whose replicas train.
        passes: the step, and its compiled functions.
        position: where the training is; it moves on call by call.
        data: what it trains on.
        validation: what it validates on, and when.
        hooks: Keras's list of its callbacks.
        states: what these remember.
        finite: watches the variables.
        report: what `Loop.fit` returns.
        each_step: whether calls are of one step, or of one update; they teach nothing of how long a call should be.
    """

    strategy: tf.distribute.Strategy
    passes: Passes
    position: Position
    data: Input
    validation: Validation
    hooks: Any
    states: CallbackStates
    finite: FiniteWatch
    report: Report
    each_step: bool

    def run(self, epochs: int) -> dict[str, Any]:
        """Train until so many epochs are done, or a callback ends it; return the logs of the last one."""
        position, step, logs = self.position, self.passes.step, dict[str, Any]()
        has_stopped = position.stopping and not position.batch  # between two epochs
        while max(position.epoch, position.ended) < epochs and not has_stopped:
            epoch = position.epoch
            call_epoch_begin(self.hooks, position, step, self.states)
            if position.batch:  # within an epoch a stop counts at once, so all workers must know of it
                agree_to_stop(self.strategy, step.model, self.hooks)
            logs = self._epoch()
            if self.validation.comes_after(epoch):
                logs |= self.validation.logs(self.passes, self.hooks)
            position.epoch, position.batch, position.totals = epoch + 1, 0, []
            self.hooks.on_epoch_end(epoch, logs)
            agree_to_stop(self.strategy, step.model, self.hooks)
            has_stopped = step.model.stop_training
        position.ended = epochs
        return logs

    def _epoch(self) -> dict[str, Any]:
        """Train what is left of the position's epoch; move the position on, call by call. Returns the epoch's logs."""
        passes, position = self.passes, self.position
        totals = self._first_totals()
        check = None if self.report.epochs else passes.later.first(position.steps)
        batches = self.data.epoch(position.epoch, start=position.batch, look_at=passes.step.accumulate, check=check)
        record, logs = Epoch(examples=0, steps=0, seconds=0.0), passes.logs(totals) if position.batch else {}
        if position.validating:  # a signal came in the middle of it
            self._end_call(position.batch - 1, logs, batches)
        while position.batch != self.data.steps and not (position.batch and passes.step.model.stop_training):
            steps = self._next_steps()
            self.hooks.on_train_batch_begin(position.batch)
            result = passes.calls.call("train", batches, totals, steps)
            if result.steps == 0:  # the end of data of unknown length
                break
            passes.later.note(result.seconds)
            seen = position.batch + result.steps - 1  # the batch that hooks are told of
            if result.first_bad_step is not None:
                seen = position.batch + result.first_bad_step
                _tell_non_finite(result.first_bad_step, position, self.hooks.callbacks)
                self.finite.stop()
            if not self.each_step:
                passes.length.learn(result.steps, result.seconds)
            examples = int(result.totals[EXAMPLES]) - int(totals[EXAMPLES])
            self.report.throughput.record(examples=examples, steps=result.steps, seconds=result.seconds)
            record.examples += examples
            record.steps += result.steps
            record.seconds += result.seconds
            totals, before = result.totals, position.batch
            logs = passes.logs(totals)
            position.batch += result.steps
            position.steps += result.steps
            position.totals = totals.numpy().tolist()
            is_within = position.batch != self.data.steps and result.first_bad_step is None
            position.validating = is_within and self.validation.falls_within(before, position.batch)
            self._end_call(seen, logs, batches)
        require_examples(position.batch, int(totals[EXAMPLES]))
        if record.steps:
            self.report.epochs.append(record)
            self.finite.require()
        return dict(logs)

    def _end_call(self, seen: int, logs: dict[str, Any], batches: EpochIterator) -> None:
        """Validate where that is due, and tell the callbacks that a call has ended, with the last batch of it."""
        position, step, later = self.position, self.passes.step, self.passes.later
        if position.validating:
            logs = logs | self.validation.logs(self.passes, self.hooks)
            position.validating = False
        self.hooks.on_train_batch_end(seen, dict(logs))
        due = self.finite.is_due, self.finite.watched != [] and later.is_due(position.steps)
        of_finite, of_later = agree_to_stop(self.strategy, step.model, self.hooks, *due)
        if of_finite or of_later:  # numbers that are not finite differ
            self.finite.require()
        if of_later and (batch := self.data.at_hand(batches, step.accumulate)) is not None:
            later.check(position.steps, batch)

    def _next_steps(self) -> int:
        """Return how many steps the next call takes: it ends where a callback wants it to, never within an update."""
        position, step = self.position, self.passes.step
        steps = self.passes.length.next(self.data.left(position.batch))
        if step.model.stop_training and num_workers(self.strategy) == 1:
            steps = min(steps, step.accumulate)  # since the epoch began: Keras ends it after its first update
        ends = [(position.steps, period) for period in ([1] if self.each_step else self.hooks.call_periods)]
        if self.validation.every:
            ends.append((position.batch, self.validation.every))
        for done, period in ends:
            until = period - done % period
            steps = min(steps, -(-until // step.accumulate) * step.accumulate)
        return steps

    def _first_totals(self) -> tf.Tensor:
        """Return the totals with which what is left of the epoch begins."""
        position, step = self.position, self.passes.step
        step.prepare(self.data.element_spec)
        if position.batch == 0:
            begin_epoch(position, self.data, step)
            step.begin("train")
            return self.passes.zeros()
        require_same_epoch(position, self.data, step)
        return tf.constant(position.totals, tf.float64)


def _tell_non_finite(index: int, position: Position, callbacks: list[KerasCallback]) -> None:
    """Raise, unless Keras's TerminateOnNaN is among the callbacks: it ends the training when it sees the logs."""
    step, epoch, batch = position.steps + index, position.epoch, position.batch + index
    error = NonFiniteLossError(
        f"The loss became NaN or infinite at training step {step} (epoch {epoch}, batch {batch} of it; all counted "
        "from 0). Lower the learning rate, give Step a clip_norm, or look for bad values in that batch, such as "
        "a label that is no class of the model's output. A loss that divides by a number of rows of its own, such as "
        "those that a mask leaves, is NaN where a replica has none: let it return a value for each example, or give "
        "the data sample weights of 0.",
        step=step,
        epoch=epoch,
        batch=batch,
    )
    tell_non_finite(callbacks, error)
    if not any(isinstance(callback, keras.callbacks.TerminateOnNaN) for callback in callbacks):
        raise error
