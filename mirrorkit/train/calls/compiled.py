"""Compiled calls of many steps each: the device works through them without a look at Python in between."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from mirrorkit._types import Batch, ConcreteFunction, Nest
from mirrorkit.data import HOST, own_rows
from mirrorkit.errors import StepError
from mirrorkit.strategy import by_replica, each_worker, first_replica, input_context, num_workers
from mirrorkit.train.calls.errors import explained_call, explained_data, explained_trace
from mirrorkit.train.input.epoch import EpochIterator, Sizes, UpdateRun
from mirrorkit.train.input.same_data import require_same_end
from mirrorkit.train.reduce import xla
from mirrorkit.train.reduce.reduction import all_reduce
from mirrorkit.train.requirements.data import with_same_rows
from mirrorkit.train.step.global_batch import GlobalBatch, HostBatch
from mirrorkit.train.step.loop_step import LoopStep, Pass

_log = logging.getLogger("mirrorkit")

# What counts what, in this file: `index` counts the runs of a call, `number` the batches of an epoch; a run of `size`
# batches takes those from `first + index * size` on. `place` says in words at which batch an error came.

# One update, or the evaluation of one batch: of the batches, the index of the run, and the number of its first batch,
# it returns the totals.
Run = Callable[[Sequence[GlobalBatch], tf.Tensor, tf.Tensor], tf.Tensor]


class Result(NamedTuple):
    """What a call of several steps returns; float64, so that an epoch's sums stay exact."""

    steps: int  # fewer than asked at the end of the data
    totals: tf.Tensor  # of all steps so far in this epoch
    first_bad_step: int | None  # index within the call of the first step whose loss was not finite
    seconds: float  # until the devices were done


class Calls:
    """The functions of a loop, each compiled once and called with any number of steps.

    Attributes:
        jit_compile: whether XLA compiles a call on data on the device as a whole: the batches, the steps, the updates.
    """

    def __init__(self, strategy: tf.distribute.Strategy, step: LoopStep) -> None:
        self.strategy = strategy
        self._step = step
        self.jit_compile = step.jit_compile if strategy.num_replicas_in_sync == 1 else False
        self._traces: dict[Any, ConcreteFunction] = {}
        self._epoch: tuple[EpochIterator, int] | None = None  # of the last call, and where that ended
        self._before: tf.Tensor = tf.constant(0, tf.int64)  # updates that were made before the epoch
        self._predicted = 0  # calls of `predictions`, each of which draws numbers of its own

        def predict_one(batch: Batch, size: int | None, number: tf.Tensor) -> Nest:
            first = 0 if size is None else own_rows(size, input_context(strategy))[0]
            with step.clock.given(step.clock.nowhere().outside("predict", *tf.unstack(number))):
                outputs = strategy.run(lambda: step.predict(HostBatch(batch, size, first)))
            if num_workers(strategy) > 1:  # every worker gets the rows of all
                outputs = tf.nest.map_structure(lambda value: strategy.gather(value, axis=0), outputs)
            return outputs

        self._predict = tf.function(predict_one, autograph=False, reduce_retracing=True)

    def call(self, what: Pass, data: EpochIterator, totals: tf.Tensor, steps: int) -> Result:
        """Train on the next `steps` batches or evaluate them, or as many as are left, adding to `totals`.

        A call ends with an update: with `accumulate`, `steps` is a multiple of it or reaches to the end of the data.
        """
        start = time.perf_counter()
        accumulate = self._batches_of(what)
        place = self._place(what, data, steps)
        if data.steps is None:
            if accumulate > 1:
                raise StepError(
                    f"accumulate={accumulate} needs data of known length, so that the last update is complete. Say how "
                    "many batches there are, dataset.apply(tf.data.experimental.assert_cardinality(n)), or give "
                    "dataset.repeat() and steps_per_epoch."
                )
            function = self._trace(what, data, None)
            with explained_call(data, place):
                done, totals, good, having = function(data.source, totals, _number(steps), _number(data.position))
                taken, finite = int(done), int(good)
            require_same_end(self.strategy, having.numpy(), data.position + taken)
        else:
            taken, counts = 0, []
            for part in data.parts(steps, accumulate):
                function = self._trace(what, data, part.sizes)
                with explained_call(data, place):
                    totals, good = function(data.source, totals, _number(part.updates), _number(part.first))
                counts.append((part, good))
                taken += part.batches
            finite = finite_steps(counts)
        data.position += taken
        return Result(taken, totals, finite if finite < taken else None, time.perf_counter() - start)

    def predictions(self, batches: Iterable[tuple[Batch, int | None]]) -> Iterator[Nest]:
        """Yield the outputs of each replica for each of the global batches, in order; see `Input.batches`."""
        done = 0
        self._predicted += 1
        with explained_data(lambda _: f"batch {done}"):
            for batch, size in batches:
                outputs = self._predict(batch, size, _number([self._predicted, done]))
                yield from by_replica(self.strategy, outputs)
                done += 1

    def function(self, what: Pass, data: EpochIterator, steps: int) -> ConcreteFunction:
        """Return the first function that `call` would call for the next `steps` batches; traces, runs nothing."""
        part = None if data.steps is None else next(data.parts(steps, self._batches_of(what)))
        return self._trace(what, data, part and part.sizes)

    def _batches_of(self, what: Pass) -> int:
        """Return how many batches one run takes: those of an update, or one."""
        return self._step.accumulate if what == "train" else 1

    def _run(self, what: Pass) -> Run:
        """Return what a compiled call repeats; called where the call begins, since it reads the clock there."""
        step, start = self._step, self._step.clock.read()

        def train(batches: Sequence[GlobalBatch], index: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
            with step.clock.at(start, index):
                return step.train(batches)

        def test(batches: Sequence[GlobalBatch], index: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
            with step.clock.given(start.outside("test", start.count, number)):
                # Added up on the replicas: TensorFlow's `strategy.reduce` would bring the sums to the host, which waits
                totals = self.strategy.run(lambda: all_reduce(step.test(batches[0])))
            return first_replica(self.strategy, totals)

        return train if what == "train" else test

    def _place(self, what: Pass, data: EpochIterator, steps: int) -> Callable[[bool], str]:
        """Return what tells, after an error, which batches the call was at: in training the clock knows the one."""
        clock, first = self._step.clock, data.position
        last = first + steps - 1 if data.steps is None else min(first + steps, data.steps) - 1
        by_clock = what == "train" and clock.counts and self._step.accumulate == 1
        if by_clock and self._epoch != (data, first):
            self._before = clock.read().count - first
        self._epoch = (data, last + 1)

        def place(was_read: bool) -> str:
            if not by_clock:
                batches = f"batch {first}" if first == last else f"one of the batches {first} to {last}"
                return batches + " of an evaluation" * (what == "test")
            batch = int(clock.read().count - self._before)
            # the step may have been counted already, unless it begins when its batch is there
            exact = batch == first or (was_read and data.steps is None)
            return f"batch {batch}" if exact else f"batch {batch - 1} or {batch}"

        return place

    def _trace(self, what: Pass, data: EpochIterator, sizes: Sizes | None) -> ConcreteFunction:
        """Return the compiled function for this kind of call, traced the first time.

        `sizes` are those of the batches of one update; None where the number of batches is unknown.
        """
        function = (what, data.kind, sizes)
        specs = tuple(map(repr, tf.nest.flatten(data.element_spec)))
        if (function, specs) not in self._traces:
            if known := [other for name, other in self._traces if name == function]:
                was, now = map(", ".join, (known[-1], specs))
                _log.warning("The data changed shape or dtype, so the loop compiles again: %s became %s.", was, now)
            totals = tf.zeros([self._step.totals_size(what)], tf.float64)
            arguments = data.source, totals, _number(0), _number(0)
            many = self._until_the_end(what, data) if sizes is None else self._counted(what, data, sizes)
            as_a_whole = data.on_device and sizes is not None and None not in sizes
            with explained_trace(sizes if any(name[0] == what for name, _ in self._traces) else None):
                self._traces[function, specs], _ = xla.trace(many, as_a_whole and self.jit_compile, *arguments)
        return self._traces[function, specs]

    def _counted(self, what: Pass, data: EpochIterator, sizes: Sizes) -> Any:
        """Make a function of a number of runs, each of batches of these sizes."""
        take = data.batch

        def many(source: Nest, totals: tf.Tensor, updates: tf.Tensor, first: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            def batches(index: tf.Tensor, numbers: Sequence[tf.Tensor]) -> list[GlobalBatch]:
                return [take(source, number, size) for number, size in zip(numbers, sizes, strict=True)]

            return self._repeated(what, batches, len(sizes), totals, updates, first)

        return many

    def _repeated(
        self,
        what: Pass,
        batches: Callable[[tf.Tensor, Sequence[tf.Tensor]], Sequence[GlobalBatch]],
        size: int,
        totals: tf.Tensor,
        updates: tf.Tensor,
        first: tf.Tensor,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Make `updates` runs of `size` batches each within a compiled call; count those before the first bad loss.

        `batches` returns those of a run, given its index and their numbers. What only counts stays
        on the host, in int32, so that the host never waits for a device before the call ends.
        """
        run, loss_index = self._run(what), self._step.loss_index

        def body(index: tf.Tensor, totals: tf.Tensor, good: tf.Tensor) -> tuple[tf.Tensor, ...]:
            with tf.device(HOST):
                numbers = [first + index * size + i for i in range(size)]
            totals += tf.cast(run(batches(index, numbers), index, numbers[0]), tf.float64)
            return _after(index), totals, good + _is_finite(totals, loss_index)

        def is_left(index: tf.Tensor, *rest: tf.Tensor) -> tf.Tensor:
            with tf.device(HOST):
                return index < updates

        begin = (_number(0), totals, tf.constant(0, tf.int64))
        _, totals, good = tf.while_loop(is_left, body, begin)
        return totals, good

    def _until_the_end(self, what: Pass, data: EpochIterator) -> Any:
        """Make a function of runs on data that may end before; an optional batch says so, where `next` would raise.

        An error in the midst of a step would leave it half done. Workers tell each other before each step whether they
        have a batch: in a step that one of them does not take, the others would wait for ever. The last result is who
        had one.
        """

        spec = data.element_spec  # without the iterator, which the function outlives

        def many(
            iterator: Any, totals: tf.Tensor, steps: tf.Tensor, first: tf.Tensor
        ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
            run = self._run(what)

            def fetch(index: tf.Tensor) -> tuple[Any, tf.Tensor]:
                with tf.device(HOST):
                    nothing = tf.experimental.Optional.empty(spec)
                    batch = tf.cond(index < steps, iterator.get_next_as_optional, lambda: nothing)
                    return batch, each_worker(self.strategy, batch.has_value())

            def body(
                index: tf.Tensor, batch: Any, having: tf.Tensor, totals: tf.Tensor, good: tf.Tensor
            ) -> tuple[Any, ...]:
                with tf.device(HOST):
                    number = first + index
                    value = with_same_rows(batch.get_value(), number)
                totals += tf.cast(run([HostBatch(value)], index, number), tf.float64)
                after = _after(index)
                return after, *fetch(after), totals, good + _is_finite(totals, self._step.loss_index)

            def all_have_one(index: tf.Tensor, batch: Any, having: tf.Tensor, *rest: Any) -> tf.Tensor:
                with tf.device(HOST):
                    return tf.reduce_all(having)

            zero = _number(0)
            begin = (zero, *fetch(zero), totals, tf.constant(0, tf.int64))
            index, _, having, totals, good = tf.while_loop(all_have_one, body, begin)
            return index, totals, good, having

        return many


def _is_finite(totals: tf.Tensor, loss_index: int) -> tf.Tensor:
    # A sum that is not finite stays so: the number of finite ones is the index of the first that is not.
    return tf.cast(tf.math.is_finite(totals[loss_index]), tf.int64)


def _after(index: tf.Tensor) -> tf.Tensor:
    with tf.device(HOST):
        return index + 1


def finite_steps(counts: Sequence[tuple[UpdateRun, tf.Tensor]]) -> int:
    """Count the steps before the first update whose loss was not finite; `counts` has the number of finite ones."""
    steps = 0
    for part, good in counts:
        steps += int(good) * len(part.sizes)  # waits for the call to end
        if int(good) < part.updates:
            break
    return steps


def _number(value: int | list[int]) -> tf.Tensor:
    with tf.device(HOST):
        return tf.constant(value, tf.int32)
