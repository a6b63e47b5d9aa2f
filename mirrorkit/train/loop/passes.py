"""One pass over the data, for training or for evaluation: calls of many steps, their totals, the batch hooks."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from mirrorkit._keras import keras
from mirrorkit._types import Batch, ConcreteFunction, KerasCallback, Nest
from mirrorkit.errors import NonFiniteLossError
from mirrorkit.strategy import is_parameter_server, num_workers, require_same
from mirrorkit.train.callback import call_periods, tell_non_finite
from mirrorkit.train.calls.compiled import Calls
from mirrorkit.train.calls.errors import require_examples
from mirrorkit.train.calls.length import CallLength
from mirrorkit.train.checkpoints.position import Position
from mirrorkit.train.first_batch.check import first_batch_check
from mirrorkit.train.first_batch.later import LaterChecks
from mirrorkit.train.input.input import Input
from mirrorkit.train.loop.callbacks import agree_to_stop, leave_on_signal
from mirrorkit.train.loop.finite import FiniteWatch
from mirrorkit.train.loop.report import Epoch, Report
from mirrorkit.train.loop.resumed import begin_epoch, require_same_epoch
from mirrorkit.train.loop.validation import Validation
from mirrorkit.train.parameter_server.calls import RemoteCallLength, RemoteCalls
from mirrorkit.train.requirements.data import check_class_targets
from mirrorkit.train.step.loop_step import LoopStep, Pass
from mirrorkit.variables import unchanged

_EXAMPLES = 0  # index into a step's totals


class Passes:
    """One pass of a loop over its data, for each purpose.

    Attributes:
        calls: the compiled functions.
        later: the checks that are made later in the training.
    """

    def __init__(self, strategy: tf.distribute.Strategy, step: LoopStep, steps_per_call: int | str) -> None:
        self._strategy = strategy
        self.step = step
        remote = is_parameter_server(strategy)
        require_same(strategy, "loop", {"steps_per_call": steps_per_call})
        self.calls = (RemoteCalls if remote else Calls)(strategy, step)
        self.later = LaterChecks(step)
        self._length = (RemoteCallLength if remote else CallLength)(strategy, steps_per_call, step.accumulate)

    @property
    def steps_per_call(self) -> int:
        """How many steps the next whole call takes."""
        return self._length.next(None)

    def training(self, data: Any, class_weight: Mapping[int, float] | None, **options: Any) -> Input:
        """Return the data of a fit or of its rehearsal; `options` are those of `Input`."""
        if class_weight:
            self.step.require("class_weight")
        made = Input(self._strategy, data, class_weight=class_weight, **options)
        if class_weight:
            check_class_targets(self.step.model, made.element_spec)
        return made

    def train(
        self,
        data: Input,
        position: Position,
        hooks: Any,
        report: Report,
        finite: FiniteWatch,
        validation: Validation,
        *,
        each_step: bool = False,
    ) -> dict[str, Any]:
        """Train what is left of the position's epoch; move the position on, call by call. Returns the epoch's logs.

        With `each_step` calls are of one step, or of one update; they teach nothing of how long a call should be.
        """
        totals = self._restored_totals(data, position)
        self._check_labels(data)
        check = self.later.first(position.steps)
        batches = data.epoch(position.epoch, start=position.batch, look_at=self.step.accumulate, check=check)
        at_hand = functools.partial(data.at_hand, batches, self.step.accumulate)
        periods = [1] if each_step else call_periods(hooks.callbacks)
        record, logs = Epoch(examples=0, steps=0, seconds=0.0), self._logs(totals) if position.batch else {}
        if position.validating:  # a signal came in the middle of it
            self._end_call(position, position.batch - 1, logs, validation, hooks, finite, at_hand)
        while position.batch != data.steps and not (position.batch and self.step.model.stop_training):
            steps = self._until_wanted(self._length.next(data.left(position.batch)), position.steps, periods)
            steps = self._until_wanted(steps, position.batch, [validation.every] if validation.every else [])
            if self.step.model.stop_training and num_workers(self._strategy) == 1:
                steps = min(steps, self.step.accumulate)  # since the epoch began: Keras ends it after its first update
            hooks.on_train_batch_begin(position.batch)
            result = self.calls.train(batches, totals, steps)
            if result.steps == 0:  # the end of data of unknown length
                break
            self.later.note(result.seconds)
            seen = position.batch + result.steps - 1  # the batch that hooks are told of
            if result.first_bad_step is not None:
                seen = position.batch + result.first_bad_step
                _tell_non_finite(result.first_bad_step, position, hooks.callbacks)
                finite.stop()
            examples = int(result.totals[_EXAMPLES]) - int(totals[_EXAMPLES])
            totals = result.totals
            if not each_step:
                self._length.learn(result.steps, result.seconds)
            report.throughput.record(examples=examples, steps=result.steps, seconds=result.seconds)
            record.add(examples, result.steps, result.seconds)
            logs, before = self._logs(totals), position.batch
            position.advance(result.steps, totals.numpy().tolist())
            is_within = position.batch != data.steps and result.first_bad_step is None
            position.validating = is_within and validation.falls_within(before, position.batch)
            self._end_call(position, seen, logs, validation, hooks, finite, at_hand)
        require_examples(position.batch, int(totals[_EXAMPLES]))
        if record.steps:
            report.epochs.append(record)
            finite.require()
        return dict(logs)

    def _end_call(
        self,
        position: Position,
        seen: int,
        logs: Mapping[str, Any],
        validation: Validation,
        hooks: Any,
        finite: FiniteWatch,
        at_hand: Callable[[], Batch | None],
    ) -> None:
        """Validate where that is due, and tell the callbacks that a call has ended, with the last batch of it."""
        if position.validating:
            logs = {**logs, **validation.logs(self, hooks)}
            position.validating = False
        hooks.on_train_batch_end(seen, dict(logs))
        due = finite.is_due, finite.watched != [] and self.later.is_due(position.steps)
        of_finite, of_later = agree_to_stop(self._strategy, self.step.model, hooks, *due)
        if of_finite or of_later:  # numbers that are not finite differ
            finite.require()
        if of_later and (batch := at_hand()) is not None:
            self.later.check(position.steps, batch)

    def test(self, data: Input, hooks: Any, *, averaged: bool = False) -> dict[str, Any]:
        """Evaluate all the data from its beginning, perhaps with the averages of the weights; return logs."""
        if averaged:
            with self.step.averaged():
                return self.test(data, hooks)
        self.step.prepare(data.element_spec, "test")
        self._check_labels(data)
        batches = data.epoch(0, look_at=1, check=first_batch_check(self.step, "test"))
        totals, done = self._zeros("test"), 0
        self.step.begin("test")
        hooks.on_test_begin()
        while done != data.steps:
            hooks.on_test_batch_begin(done)
            result = self.calls.test(batches, totals, self._length.next(data.left(done)))
            if result.steps == 0:
                break
            totals = result.totals
            done += result.steps
            hooks.on_test_batch_end(done - 1, self._logs(totals, "test"))
            leave_on_signal(self._strategy, self.step.model, hooks)
        require_examples(done, int(totals[_EXAMPLES]))
        logs = self._logs(totals, "test")
        hooks.on_test_end(logs)
        return logs

    def predict(self, data: Input) -> Iterator[Nest]:
        """Return the outputs for all the data, a part for each replica and batch, in order."""
        return self.calls.predictions(data.batches(first_batch_check(self.step, "predict")))

    def rehearse(self, training: Input, testing: Input | None) -> None:
        """Run every function once or twice, and leave all variables as they were."""
        self.step.require("train")
        with unchanged([]):
            self.step.prepare(training.element_spec)  # which may make variables
        with unchanged(self.step.variables):
            check = first_batch_check(self.step)
            if check is not None and (batch := training.first()) is not None:
                check(batch)
            for number, (batches, least) in enumerate(training.rehearsals(self.step.accumulate)):
                for steps in self._length.probes() if number == 0 else (least,):
                    result = self.calls.train(batches, self._zeros(), min(steps, batches.left or steps))
                    batches.position -= result.steps
                    self._length.learn(result.steps, result.seconds)
            if testing is not None:
                self.step.prepare(testing.element_spec, "test")
                for batches, _ in testing.rehearsals():
                    self.calls.test(batches, self._zeros("test"), 1)

    def traced(self, training: Input) -> ConcreteFunction:
        """Trace the function of whole batches, without running it."""
        self.step.require("train")
        assert not isinstance(self.calls, RemoteCalls)  # under parameter servers the workers trace theirs
        self.step.prepare(training.element_spec)
        batches, steps = next(training.rehearsals(self.step.accumulate))
        return next(self.calls.functions("train", batches, steps))

    def _check_labels(self, data: Input) -> None:
        labels, data.unchecked_labels = data.unchecked_labels, None
        if labels is not None:
            self.step.check_labels(labels)

    def _until_wanted(self, steps: int, done: int, every: list[int]) -> int:
        """Shorten a call so that it ends where a callback wants it to, but never within an update."""
        for period in every:
            until = period - done % period
            steps = min(steps, -(-until // self.step.accumulate) * self.step.accumulate)
        return steps

    def _restored_totals(self, data: Input, position: Position) -> tf.Tensor:
        self.step.prepare(data.element_spec)
        if position.batch == 0:
            begin_epoch(position, data, self.step)
            self.step.begin("train")
            return self._zeros()
        require_same_epoch(position, data, self.step)
        return tf.constant(position.totals, tf.float64)

    def _zeros(self, what: Pass = "train") -> tf.Tensor:
        return tf.zeros([self.step.totals_size(what)], tf.float64)

    def _logs(self, totals: tf.Tensor, what: Pass = "train") -> dict[str, Any]:
        values = {name: np.asarray(value) for name, value in self.step.logs(totals, what).items()}
        return {name: value.item() if value.ndim == 0 else value for name, value in values.items()}


def _tell_non_finite(index: int, position: Position, callbacks: list[KerasCallback]) -> None:
    """Raise, unless Keras's TerminateOnNaN is among the callbacks: it ends the training when it sees the logs."""
    step, epoch, batch = position.steps + index, position.epoch, position.batch + index
    error = NonFiniteLossError(
        f"The loss became NaN or infinite at training step {step} (epoch {epoch}, batch {batch} of it; all counted "
        "from 0). Lower the learning rate, give Step a clip_norm, or look for bad values in that batch. A loss that "
        "divides by a number of rows of its own, such as those that a mask leaves, is NaN where a replica has none: "
        "let it return a value for each example, or give the data sample weights of 0.",
        step=step,
        epoch=epoch,
        batch=batch,
    )
    tell_non_finite(callbacks, error)
    if not any(isinstance(callback, keras.callbacks.TerminateOnNaN) for callback in callbacks):
        raise error
