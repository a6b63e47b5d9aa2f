"""Calls under parameter servers: each is cut into pieces, which the workers take as they become free.

A call schedules its pieces, waits for all of them, and adds up what they return. What lies outside of a call - logs,
callbacks, checkpoints, the position in the data - therefore sees a state in which no worker is at work.

The chief reads the batches and sends them; those of a set that every worker was sent are read as the numbers of their
rows. A piece names its batches, so it means the same on whichever worker it runs, and again on another one when that
worker dies.
"""

from __future__ import annotations

import itertools
import time
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from mirrorkit._types import Batch, Nest, Spec
from mirrorkit.cluster import unreachable, with_addresses
from mirrorkit.errors import ClusterError, StepError
from mirrorkit.strategy import task_addresses
from mirrorkit.train.calls.compiled import Calls, Result, Run, finite_steps
from mirrorkit.train.calls.errors import explained, require_servers
from mirrorkit.train.calls.length import CallLength
from mirrorkit.train.input.epoch import EpochIterator, HostIterator, UpdateRun
from mirrorkit.train.input.resident import SentIterator
from mirrorkit.train.requirements.data import require_same_rows
from mirrorkit.train.step.global_batch import GlobalBatch, HostBatch
from mirrorkit.train.step.loop_step import LoopStep, Pass

_CALL_SECONDS = 2.0  # what "auto" aims at: at its end workers wait for the last piece
_PIECES = 4  # for each worker in a call, so that a slow worker takes fewer
_POLL_SECONDS = 0.002
_LOOK_SECONDS = 2.0  # between two looks whether all tasks are there
_PATIENCE_SECONDS = 300.0  # without a single worker


Readable = HostIterator | SentIterator  # what the chief reads, batch by batch
# For each batch of an update a nest of tensors whose first dimension counts the updates: what `read` gives of them.
Columns = list[Nest]


class RemoteCalls(Calls):
    """The calls of a loop under parameter servers.

    A piece is run again where its worker dies before it has answered, so some of its steps may be made twice; its
    totals are counted once.
    """

    def __init__(self, strategy: tf.distribute.Strategy, step: LoopStep) -> None:
        super().__init__(strategy, step)
        self._coordinator = tf.distribute.experimental.coordinator.ClusterCoordinator(strategy)
        self._workers = len(task_addresses(strategy, "worker"))
        self._sent: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()

    def predictions(self, batches: Iterable[tuple[Batch, int | None]]) -> Iterator[Nest]:
        """Yield the outputs for each global batch, in order."""
        self._predicted += 1
        scheduled = (
            self._schedule(self._predict, (batch, size, tf.constant([self._predicted, number])))
            for number, (batch, size) in enumerate(batches)
        )
        while some := list(itertools.islice(scheduled, 2 * self._workers)):
            yield from self._fetched(some)

    def call(self, what: Pass, data: EpochIterator, totals: tf.Tensor, steps: int) -> Result:
        """See `Calls`."""
        assert isinstance(data, Readable)  # no other data is held
        start = time.perf_counter()
        accumulate = self._batches_of(what)
        made: list[UpdateRun] = []
        scheduled = []
        at_once = max(1, steps // (accumulate * self._workers * _PIECES))
        sent = self._sent_once(data)
        for piece, columns in pieces(data, steps, accumulate, at_once):
            shapes = specs(data, piece, columns)
            key = (what, data.kind, repr(shapes))
            if key not in self._traces:
                self._traces[key] = self._make(what, data, shapes)
            made.append(piece)
            scheduled.append(self._schedule(self._traces[key], (tf.constant(piece.first), columns, *sent)))
        results = self._fetched(scheduled)
        taken = sum(piece.batches for piece in made)
        finite = finite_steps([(piece, good) for piece, (_, good) in zip(made, results, strict=True)])
        totals = sum((added for added, _ in results), totals)
        data.position += taken
        return Result(taken, totals, finite if finite < taken else None, time.perf_counter() - start)

    def _schedule(self, function: Any, arguments: tuple[Any, ...]) -> Any:
        with explained(self.strategy):
            return self._coordinator.schedule(function, args=arguments)

    def _fetched(self, results: list[Any]) -> list[Any]:
        """Wait for all that is scheduled; return what it gave."""
        with explained(self.strategy):
            looked = last_seen = time.monotonic()
            while not self._coordinator.done():
                time.sleep(_POLL_SECONDS)
                if time.monotonic() - looked > _LOOK_SECONDS:
                    last_seen = self._look(last_seen)
                    looked = time.monotonic()
            return [result.get() for result in results]  # they are on the chief already

    def _look(self, last_seen: float) -> float:
        """Return when a worker last answered; raise where a server has exited, or no worker answers for long."""
        require_servers(self.strategy)
        workers = task_addresses(self.strategy, "worker")
        if len(unreachable(workers)) < len(workers):
            return time.monotonic()
        if time.monotonic() - last_seen > _PATIENCE_SECONDS:
            raise ClusterError(
                f"No worker has answered for {_PATIENCE_SECONDS:g} s ({with_addresses(workers, workers)}). Start them "
                "again; a run with mk.train.Checkpoints goes on from its newest checkpoint."
            )
        return last_seen

    def _sent_once(self, data: Readable) -> tuple[Any, ...]:
        """Return the epoch, and an iterator on each worker that gives the whole set, where there is one."""
        if isinstance(data, HostIterator):
            return ()
        if data.data not in self._sent:
            self._sent[data.data] = iter(self._coordinator.create_per_worker_dataset(data.arrays))
        return tf.constant(data.epoch), self._sent[data.data]

    def _make(self, what: Pass, data: Readable, shapes: list[Spec]) -> Any:
        """Make the function of a piece whose columns have these shapes."""

        def many(first: tf.Tensor, columns: Columns, *sent: Any) -> tuple[tf.Tensor, tf.Tensor]:
            arrays = next(sent[1]) if sent else None

            def batches(index: tf.Tensor, numbers: Sequence[tf.Tensor]) -> list[GlobalBatch]:
                taken = tf.nest.map_structure(lambda column: column[index], columns)
                if isinstance(data, SentIterator):
                    taken = [data.make(arrays, *one, sent[0]) for one in zip(taken, numbers, strict=True)]
                return [HostBatch(batch) for batch in taken]

            updates = tf.shape(tf.nest.flatten(columns)[0])[0]
            totals = tf.zeros([self._step.totals_size(what)], tf.float64)
            return self._repeated(what, batches, len(columns), totals, updates, first)

        number, sent = tf.TensorSpec([], tf.int32), []
        if isinstance(data, SentIterator):
            sent = [number, tf.data.IteratorSpec(data.arrays().element_spec)]
        return tf.function(many, autograph=False, input_signature=[number, shapes, *sent])

    def _run(self, what: Pass) -> Run:
        """Return what a piece repeats; a training has no clock, since other workers make steps at the same time."""
        if what == "test":
            return super()._run(what)
        return lambda batches, index, number: self._step.train(batches, number)


class RemoteCallLength(CallLength):
    """How many steps a call of all workers together takes; "auto" follows their speed from call to call."""

    def __init__(self, strategy: tf.distribute.Strategy, asked: int | str, multiple: int = 1) -> None:
        super().__init__(strategy, asked, multiple)
        self._least = len(task_addresses(strategy, "worker"))
        if self._auto:
            self._steps = self._least

    def probes(self) -> tuple[int, ...]:
        """Return the lengths of the calls with which to rehearse: pieces of one update, and of several."""
        return self._whole(self._steps, 2 * _PIECES * self._steps)

    def learn(self, steps: int, seconds: float) -> None:
        """Take in how long a call of `steps` took; the first two compile, on the chief and on the workers."""
        self._calls += 1
        if self._auto:
            wanted = round(_CALL_SECONDS * steps / max(seconds, 1e-6))
            largest = 4 * self._steps if self._calls > 2 else _PIECES * self._least
            self._steps = max(self._least, min(wanted, largest))


def pieces(data: Readable, steps: int, accumulate: int, at_once: int) -> Iterator[tuple[UpdateRun, Columns]]:
    """Divide the next `steps` batches, or as many as are left, into pieces of at most `at_once` updates.

    An update has `accumulate` batches; what is left over at the end of the data is an update of its own.
    """
    first = data.position
    for _, alike in itertools.groupby(_updates(data, steps, accumulate), _shapes):
        while rows := list(itertools.islice(alike, at_once)):
            columns = [tf.nest.map_structure(lambda *v: tf.stack(v), *column) for column in zip(*rows, strict=True)]
            found = [tf.nest.flatten(batch)[0].shape[0] for batch in rows[0]]
            piece = UpdateRun(first, len(rows), tuple(size if size == data.size_of(0) else None for size in found))
            yield piece, columns
            first += piece.batches


def _shapes(update: Any) -> list[tf.TensorShape]:
    return [tensor.shape for tensor in tf.nest.flatten(update)]


def specs(data: Readable, piece: UpdateRun, columns: Columns) -> list[Spec]:
    """Return the specification of each column, for any number of updates."""
    return [
        tf.nest.map_structure(
            lambda v, s, size=size: tf.TensorSpec([None, size, *s.shape[1:]], v.dtype), column, data.element_spec
        )
        for column, size in zip(columns, piece.sizes, strict=True)
    ]


def _updates(data: Readable, steps: int, accumulate: int) -> Iterator[list[Batch]]:
    """Read the batches of one update after the other."""
    for done in range(data.position, data.position + steps, accumulate):
        wanted = range(done, min(done + accumulate, data.position + steps))
        update = list(itertools.takewhile(lambda batch: batch is not None, map(data.read, wanted)))
        for number, batch in enumerate(update, done):
            require_same_rows(batch, number)
        if len(update) < len(wanted) and data.steps is not None:
            raise StepError(
                f"The data claims to hold {data.steps} batches, but ended after {done + len(update)}. Fix its "
                "cardinality (tf.data.experimental.assert_cardinality)."
            )
        if update:
            yield update
        if len(update) < len(wanted):
            return
