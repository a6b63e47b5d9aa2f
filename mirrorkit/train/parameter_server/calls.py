"""Calls under parameter servers: each is cut into pieces, which the workers take as they become free.

A call schedules its pieces, waits for all of them, and adds up what they return. What lies outside of a call - logs,
callbacks, checkpoints, the position in the data - therefore sees a state in which no worker is at work.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from mirrorkit._types import Batch, Nest, Spec
from mirrorkit.cluster import unreachable, with_addresses
from mirrorkit.errors import ClusterError
from mirrorkit.strategy import first_replica, task_addresses
from mirrorkit.train.calls.compiled import Calls, Result
from mirrorkit.train.calls.errors import explained, require_servers
from mirrorkit.train.calls.length import CallLength
from mirrorkit.train.input.epoch import EpochIterator
from mirrorkit.train.parameter_server.pieces import Columns, HostPieces, SentPieces, pieces_of
from mirrorkit.train.reduce.reduction import all_reduce
from mirrorkit.train.step.global_batch import HostBatch
from mirrorkit.train.step.loop_step import LoopStep, Pass

_CALL_SECONDS = 2.0  # what "auto" aims at: at its end workers wait for the last piece
_PIECES = 4  # for each worker in a call, so that a slow worker takes fewer
_POLL_SECONDS = 0.002
_LOOK_SECONDS = 2.0  # between two looks whether all tasks are there
_PATIENCE_SECONDS = 300.0  # without a single worker

Pieces: TypeAlias = HostPieces | SentPieces


class RemoteCalls:
    """The functions of a loop under parameter servers; what `Calls` is under the other strategies.

    A piece is run again where its worker dies before it has answered, so some of its steps may be made twice; its
    totals are counted once.
    """

    def __init__(self, strategy: tf.distribute.Strategy, step: LoopStep) -> None:
        self._strategy = strategy
        self._step = step
        self._coordinator = tf.distribute.experimental.coordinator.ClusterCoordinator(strategy)
        self._workers = len(task_addresses(strategy, "worker"))
        self._traces: dict[Any, Any] = {}
        self._predicted = 0  # calls of `predictions`
        self._sent: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        chief = tf.distribute.OneDeviceStrategy("/job:chief/replica:0/task:0/device:CPU:0")
        self.local = Calls(chief, step)  # makes calls in this process

    def train(self, data: EpochIterator, totals: tf.Tensor, steps: int) -> Result:
        """Train on the next `steps` batches, or as many as are left, adding to `totals`."""
        return self._call("train", data, totals, steps)

    def test(self, data: EpochIterator, totals: tf.Tensor, steps: int) -> Result:
        """Evaluate the next `steps` batches, or as many as are left, adding to `totals`."""
        return self._call("test", data, totals, steps)

    def predictions(self, batches: Iterable[tuple[Batch, int | None]]) -> Iterator[Nest]:
        """Yield the outputs for each global batch, in order."""
        waiting: list[Any] = []
        self._predicted += 1
        for number, (batch, _) in enumerate(batches):
            if "predict" not in self._traces:
                self._traces["predict"] = tf.function(self._predict, autograph=False, reduce_retracing=True)
            waiting.append(self._schedule(self._traces["predict"], (batch, tf.constant([self._predicted, number]))))
            if len(waiting) == 2 * self._workers:
                yield from self._fetched(waiting)
                waiting = []
        yield from self._fetched(waiting)

    @property
    def traces(self) -> int:
        """How many functions were compiled; where it grows during training, time is lost."""
        return len(self._traces)

    def _call(self, what: Pass, data: EpochIterator, totals: tf.Tensor, steps: int) -> Result:
        start = time.perf_counter()
        accumulate = self._step.accumulate if what == "train" else 1
        at_once = max(1, steps // (accumulate * self._workers * _PIECES))
        pieces, scheduled = pieces_of(data), []
        sent, epoch = self._sent_once(pieces), tf.constant(pieces.epoch, tf.int64)
        for part, columns in pieces.cut(steps, accumulate, at_once):
            specs = pieces.specs(part, columns)
            key = (what, data.kind, repr(specs))
            if key not in self._traces:
                self._traces[key] = self._make(what, pieces, specs)
            arguments = (tf.constant(part.first, tf.int64), epoch, columns, *sent)
            scheduled.append((part, self._schedule(self._traces[key], arguments)))
        results = self._fetched([result for _, result in scheduled])
        taken, bad = 0, None
        sums = np.array(totals, np.float64)
        for (part, _), (added, good) in zip(scheduled, results, strict=True):
            sums += added.numpy()
            if bad is None and int(good) < part.updates:
                bad = taken + int(good) * len(part.sizes)
            taken += part.batches
        data.advance(taken)
        return Result(taken, tf.constant(sums), bad, time.perf_counter() - start)

    def _schedule(self, function: Any, arguments: tuple[Any, ...]) -> Any:
        with explained(self._strategy):
            return self._coordinator.schedule(function, args=arguments)

    def _fetched(self, results: list[Any]) -> list[Any]:
        """Wait for all that is scheduled; return what it gave."""
        with explained(self._strategy):
            looked, last_seen = time.monotonic(), time.monotonic()
            while not self._coordinator.done():
                time.sleep(_POLL_SECONDS)
                if time.monotonic() - looked > _LOOK_SECONDS:
                    last_seen = self._look(last_seen)
                    looked = time.monotonic()
            return [result.get() for result in results]  # they are on the chief already

    def _look(self, last_seen: float) -> float:
        """Return when a worker last answered; raise where a server has exited, or no worker answers for long."""
        require_servers(self._strategy)
        workers = task_addresses(self._strategy, "worker")
        if len(unreachable(workers)) < len(workers):
            return time.monotonic()
        if time.monotonic() - last_seen > _PATIENCE_SECONDS:
            raise ClusterError(
                f"No worker has answered for {_PATIENCE_SECONDS:g} s ({with_addresses(workers)}). Start them again; a "
                "run with mk.train.Checkpoints goes on from its newest checkpoint."
            )
        return last_seen

    def _sent_once(self, pieces: Pieces) -> tuple[Any, ...]:
        """Return an iterator on each worker that gives the whole set, where there is one."""
        if pieces.whole is None:
            return ()
        data, arrays = pieces.whole
        if data not in self._sent:
            self._sent[data] = iter(self._coordinator.create_per_worker_dataset(arrays))
        return (self._sent[data],)

    def _make(self, what: Pass, pieces: Pieces, specs: list[Spec]) -> Any:
        run = self._step.train if what == "train" else self._test
        size, totals_size, loss_index = len(specs), self._step.totals_size(what), self._step.loss_index

        def many(first: tf.Tensor, epoch: tf.Tensor, columns: Columns, *sent: Any) -> tuple[tf.Tensor, tf.Tensor]:
            whole = next(sent[0]) if sent else None
            updates = tf.shape(tf.nest.flatten(columns)[0], out_type=tf.int64)[0]

            def batch(place: int, index: tf.Tensor) -> HostBatch:
                taken = tf.nest.map_structure(lambda column: column[index], columns[place])
                return HostBatch(pieces.batch(taken, whole, epoch, first + index * size + place))

            def body(index: tf.Tensor, totals: tf.Tensor, good: tf.Tensor) -> tuple[tf.Tensor, ...]:
                batches = [batch(place, index) for place in range(size)]
                totals += tf.cast(run(batches, first + index * size), tf.float64)
                return index + 1, totals, good + tf.cast(tf.math.is_finite(totals[loss_index]), tf.int64)

            zero = tf.constant(0, tf.int64)
            start = (zero, tf.zeros([totals_size], tf.float64), zero)
            _, totals, good = tf.while_loop(lambda index, *_: index < updates, body, start, parallel_iterations=1)
            return totals, good

        scalar = tf.TensorSpec([], tf.int64)
        sent = [] if pieces.whole is None else [tf.data.IteratorSpec(pieces.whole[1]().element_spec)]
        return tf.function(many, autograph=False, input_signature=[scalar, scalar, specs, *sent])

    def _test(self, batches: list[HostBatch], first_part: tf.Tensor) -> tf.Tensor:
        start = self._step.clock.read()
        with self._step.clock.given(start.outside("test", start.count, first_part)):
            totals = self._strategy.run(lambda: all_reduce(self._step.test(batches[0])))
        return first_replica(self._strategy, totals)

    def _predict(self, batch: Batch, number: tf.Tensor) -> Nest:
        with self._step.clock.given(self._step.clock.nowhere().outside("predict", *tf.unstack(number))):
            return first_replica(self._strategy, self._strategy.run(lambda: self._step.predict(HostBatch(batch))))


class RemoteCallLength(CallLength):
    """How many steps a call of all workers together takes; "auto" follows their speed from call to call."""

    def __init__(self, strategy: tf.distribute.Strategy, asked: int | str, multiple: int = 1) -> None:
        super().__init__(strategy, asked, multiple)
        self._least = len(task_addresses(strategy, "worker"))
        if self._auto:
            self._steps = self._least

    def probes(self) -> tuple[int, ...]:
        """Return the lengths of the calls with which to rehearse: pieces of one update, and of several."""
        return tuple(-(-steps // self._multiple) * self._multiple for steps in (self._steps, 2 * _PIECES * self._steps))

    def learn(self, steps: int, seconds: float) -> None:
        """Take in how long a call of `steps` took; the first two compile, on the chief and on the workers."""
        self._calls += 1
        if self._auto:
            wanted = round(_CALL_SECONDS * steps / max(seconds, 1e-6))
            largest = 4 * self._steps if self._calls > 2 else _PIECES * self._least
            self._steps = max(self._least, min(wanted, largest))
