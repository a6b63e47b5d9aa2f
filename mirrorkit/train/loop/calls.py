"""Compiled calls of many steps each: the device works through them without a look at Python in between."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import tensorflow as tf

from mirrorkit.errors import StepError
from mirrorkit.strategy import first_replica, num_workers, of_all_workers
from mirrorkit.train.loop.stream import Sizes, Stream, other_size
from mirrorkit.train.reduce.reduction import all_reduce
from mirrorkit.train.step.share import HOST, Share, own_share

_log = logging.getLogger("mirrorkit")

_CALL_SECONDS = 0.5  # what "auto" aims at: long enough to hide the dispatch, short enough for a progress bar
_PROBE_STEPS = 4
_LEARNING_CALLS = 4  # how many calls "auto" looks at
_LONGER = 4  # times as long as the last one, at most: a call of a small last batch says little of the others

# An operation that it does not know; a size that it must know beforehand; something else than variables and tensors.
_REFUSED_BY_XLA = ("unsupported operations", "compile-time constant", "xla_launch_util")


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
        step: has `train(batch, share)` in cross-replica context and `test(batch)` on a replica, both giving totals,
            whose entry `step.loss_index` is not finite when the loss is not.
        jit_compile: have XLA compile whole calls, where it can; for a single replica.
    """

    def __init__(self, strategy: tf.distribute.Strategy, step: Any, *, jit_compile: bool = False) -> None:
        self._strategy = strategy
        self._step = step
        self._jit_compile = jit_compile
        self._traces: dict[Any, Any] = {}

        def predict_one(batch: Any) -> Any:
            outputs = strategy.run(lambda batch: step.predict(own_share(batch)), args=(batch,))
            if num_workers(strategy) > 1:  # every worker gets the rows of all
                outputs = tf.nest.map_structure(lambda value: strategy.gather(value, axis=0), outputs)
            return outputs

        self._predict = tf.function(predict_one, autograph=False, reduce_retracing=True)

    def train(self, stream: Stream, totals: tf.Tensor, steps: int) -> Result:
        """Train on the next `steps` batches, or as many as are left, adding to `totals`.

        A call ends with an update: with `accumulate`, `steps` is a multiple of it or reaches to the end of the data.
        """
        return self._call(self._train_update, stream, totals, steps, self._step.accumulate)

    def test(self, stream: Stream, totals: tf.Tensor, steps: int) -> Result:
        """Evaluate the next `steps` batches, or as many as are left, adding to `totals`."""
        return self._call(self._test_one, stream, totals, steps, 1)

    def predict(self, batch: Any) -> list[Any]:
        """Return the outputs for one global batch, one nest for each replica, in order."""
        outputs = self._predict(batch)
        parts = [self._strategy.experimental_local_results(value) for value in tf.nest.flatten(outputs)]
        return [tf.nest.pack_sequence_as(first_replica(self._strategy, outputs), p) for p in zip(*parts, strict=True)]

    def predictions(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yield the outputs for many global batches, in order."""
        for batch in batches:
            yield from self.predict(batch)

    def functions(self, stream: Stream, steps: int, *, training: bool) -> Iterator[Any]:
        """Yield the functions that `train` or `test` would call for the next `steps` batches; traces, runs nothing."""
        update, accumulate = (self._train_update, self._step.accumulate) if training else (self._test_one, 1)
        if stream.steps is None:
            yield self._trace(_until_the_end, update, stream, (None,))
            return
        for _, sizes in stream.parts(steps, accumulate):
            yield self._trace(_counted, update, stream, sizes)

    def predict_function(self, element_spec: Any) -> Any:
        """Return the function that `predict` would call for batches like these; traces, runs nothing."""
        return self._predict.get_concrete_function(element_spec)

    def _train_update(self, batches: list[tuple[Any, Share]]) -> tf.Tensor:
        if self._step.accumulate == 1:
            return self._step.train(*batches[0])
        for part, (batch, share) in enumerate(batches):
            self._step.add(batch, part, share)
        return self._step.finish()

    def _test_one(self, batches: list[tuple[Any, Share]]) -> tf.Tensor:
        ((batch, share),) = batches
        # On the replicas: TensorFlow's `strategy.reduce` would bring the sums to the host, which waits for them.
        totals = self._strategy.run(lambda batch: all_reduce(self._step.test(share(batch))), args=(batch,))
        return first_replica(self._strategy, totals)

    def _call(self, update: Any, stream: Stream, totals: tf.Tensor, steps: int, accumulate: int) -> Result:
        start = time.perf_counter()
        if stream.steps is None:
            _require_known_length(accumulate)
            function = self._trace(_until_the_end, update, stream, (None,))
            done, totals, good = function(stream.source, totals, _number(steps))
            taken, finite = int(done), int(good)
        else:
            taken, counts = 0, []
            for updates, sizes in stream.parts(steps, accumulate):
                function = self._trace(_counted, update, stream, sizes)
                first = _number(stream.position + taken)
                with _explained(stream, compiled=self._with_xla(stream, sizes)):
                    totals, good = function(stream.source, totals, _number(updates), first)
                counts.append((updates, len(sizes), good))
                taken += updates * len(sizes)
            finite = _finite_steps(counts)
        stream.advance(taken)
        return Result(taken, totals, finite if finite < taken else None, time.perf_counter() - start)

    def _trace(self, make: Callable[..., Any], update: Any, stream: Stream, sizes: Sizes) -> Any:
        """Return the compiled function for this kind of call; traces it when there is none."""
        if self._jit_compile and not stream.on_device and not self._traces:
            _log.warning(
                "Loop(jit_compile=True) was asked for, but XLA cannot read data from the host: these calls are made as "
                "without it. Use mk.data.resident."
            )
        function = (make, update.__name__, stream.kind, sizes)
        specs = tuple(map(repr, tf.nest.flatten(stream.element_spec)))
        if (function, specs) not in self._traces:
            known = [other for name, other in self._traces if name == function]
            if known:
                changes = [f"{old} became {new}" for old, new in zip(known[-1], specs, strict=False) if old != new]
                _log.warning("The data changed shape or dtype, so the loop compiles again: %s.", "; ".join(changes))
            many = make(self._step, update, stream.take, sizes, self._with_xla(stream, sizes))
            arguments = [_number(0)] * (2 if make is _counted else 1)
            totals = tf.zeros([self._step.totals_size], tf.float64)
            self._traces[function, specs] = many.get_concrete_function(stream.source, totals, *arguments)
        return self._traces[function, specs]

    def _with_xla(self, stream: Stream, sizes: Sizes) -> bool:
        """Whether XLA compiles this kind of call: it knows no iterators and no sizes that show on the way."""
        return self._jit_compile and stream.on_device and None not in sizes

    @property
    def traces(self) -> int:
        """How many functions were compiled; a number that grows during training names a loss of time."""
        return len(self._traces)


@contextmanager
def _explained(stream: Stream, *, compiled: bool) -> Iterator[None]:
    """Turn TensorFlow's errors about data that ends too early, or that XLA cannot compile, into one that helps."""
    try:
        yield
    except tf.errors.OutOfRangeError as error:
        raise StepError(
            f"The data said that it holds {stream.steps} batches, but ended before. Fix its cardinality "
            "(tf.data.experimental.assert_cardinality), and start over: the last step is half done."
        ) from error
    except (tf.errors.InvalidArgumentError, tf.errors.InternalError, tf.errors.UnimplementedError) as error:
        if "EnsureShape" in error.message and stream.size is not None:
            raise StepError(other_size(None)) from error
        if not (compiled and any(sign in error.message for sign in _REFUSED_BY_XLA)):
            raise
        raise StepError(
            f"Loop(jit_compile=True) was asked for, but XLA cannot do it: {error.message.splitlines()[0]}. Leave that "
            "operation out of the model and of the data's map, or leave out jit_compile."
        ) from error


def _require_known_length(accumulate: int) -> None:
    if accumulate > 1:
        raise StepError(
            f"accumulate={accumulate} needs data of known length, so that the last update is complete. Give "
            "steps_per_epoch, or say how many batches there are: dataset.apply("
            "tf.data.experimental.assert_cardinality(n))."
        )


def _counted(step: Any, update: Any, take: Any, sizes: Sizes, jit_compile: bool) -> Any:
    """Make a function of a number of updates, each of batches of these sizes.

    What only counts stays on the host, in int32, so that the host never waits for a device before the call ends.
    """

    # AutoGraph would rewrite the user's code too, and with it the errors that it raises.
    @tf.function(autograph=False, jit_compile=jit_compile or None)
    def many(source: Any, totals: tf.Tensor, updates: tf.Tensor, first: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        start = step.clock.read()

        def body(index: tf.Tensor, totals: tf.Tensor, good: tf.Tensor) -> tuple[tf.Tensor, ...]:
            with tf.device(HOST):
                places = [first + index * len(sizes) + i for i in range(len(sizes))]
            with step.clock.at(start, index):
                new = update([take(source, place, size) for place, size in zip(places, sizes, strict=True)])
            totals += tf.cast(new, tf.float64)
            return _after(index), totals, good + _is_finite(totals, step.loss_index)

        begin = (_number(0), totals, tf.constant(0, tf.int64))
        _, totals, good = tf.while_loop(lambda index, *_: _is_less(index, updates), body, begin)
        return totals, good

    return many


def _until_the_end(step: Any, update: Any, take: Any, sizes: Sizes, jit_compile: bool) -> Any:
    """Make a function of steps on data that may end before; an optional batch says so, where `next` would raise.

    An error in the midst of a step would leave it half done.
    """
    del take, sizes, jit_compile

    @tf.function(autograph=False)
    def many(iterator: Any, totals: tf.Tensor, steps: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        start = step.clock.read()

        def fetch(index: tf.Tensor) -> Any:
            with tf.device(HOST):
                nothing = tf.experimental.Optional.empty(iterator.element_spec)
                return tf.cond(index < steps, iterator.get_next_as_optional, lambda: nothing)

        def body(index: tf.Tensor, batch: Any, totals: tf.Tensor, good: tf.Tensor) -> tuple[Any, ...]:
            with tf.device(HOST):
                value = batch.get_value()
            with step.clock.at(start, index):
                totals += tf.cast(update([(value, own_share)]), tf.float64)
            after = _after(index)
            return after, fetch(after), totals, good + _is_finite(totals, step.loss_index)

        def has_value(index: tf.Tensor, batch: Any, *rest: Any) -> tf.Tensor:
            with tf.device(HOST):
                return batch.has_value()

        zero = _number(0)
        index, _, totals, good = tf.while_loop(has_value, body, (zero, fetch(zero), totals, tf.constant(0, tf.int64)))
        return index, totals, good

    return many


def _is_finite(totals: tf.Tensor, loss_index: int) -> tf.Tensor:
    # A sum that is not finite stays so: the number of finite ones is the index of the first that is not.
    return tf.cast(tf.math.is_finite(totals[loss_index]), tf.int64)


def _is_less(index: tf.Tensor, end: tf.Tensor) -> tf.Tensor:
    with tf.device(HOST):
        return index < end


def _after(index: tf.Tensor) -> tf.Tensor:
    with tf.device(HOST):
        return index + 1


def _finite_steps(counts: list[tuple[int, int, tf.Tensor]]) -> int:
    """Count the steps before the first whose update had no finite loss, from (updates, steps of each, finite ones)."""
    steps = 0
    for updates, size, good in counts:
        steps += int(good) * size  # waits for the call to end
        if int(good) < updates:
            break
    return steps


def _number(value: int) -> tf.Tensor:
    with tf.device(HOST):
        return tf.constant(value, tf.int32)


class CallLength:
    """How many steps a call takes: what the user said, or about half a second's worth, found from the first calls.

    Args:
        strategy: its chief decides for all workers.
        asked: a number, or "auto".
        multiple: calls are a multiple of this many steps long (rounded up), for updates that take several.
    """

    def __init__(self, strategy: tf.distribute.Strategy, asked: int | str, multiple: int = 1) -> None:
        self._strategy = strategy
        self._auto = asked == "auto"
        self._multiple = multiple
        self._steps = 1 if self._auto else int(asked)
        self._calls = 0

    def next(self, left: int | None) -> int:
        """Return the length of the next call when `left` steps remain, or None where nobody knows how many do."""
        steps = -(-self._steps // self._multiple) * self._multiple
        return steps if left is None else min(steps, left)

    def probes(self) -> tuple[int, ...]:
        """Return the lengths of the calls with which to rehearse: one that compiles, and one to learn from."""
        lengths = (1, _PROBE_STEPS) if self._auto and self._calls < 2 else (1,)
        return tuple(-(-steps // self._multiple) * self._multiple for steps in lengths)

    def learn(self, steps: int, seconds: float) -> None:
        """Take in how long a call of `steps` took: the first compiles, the second decides, the next two may lengthen.

        A short call takes longer for each step than a long one, and any may compile for a last batch of another size.
        """
        self._calls += 1
        if self._auto and self._calls == 1:
            self._steps = _PROBE_STEPS
        elif self._auto and self._calls <= _LEARNING_CALLS:
            wanted = max(1, round(_CALL_SECONDS * steps / max(seconds, 1e-6)))
            wanted = int(of_all_workers(self._strategy, wanted)[0])
            longer = max(self._steps, min(wanted, _LONGER * self._steps))
            self._steps = wanted if self._calls == 2 else longer
