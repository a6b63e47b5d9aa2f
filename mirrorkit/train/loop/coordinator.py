"""Calls under parameter servers: each is cut into pieces, which the workers take as they become free.

A call schedules its pieces, waits for all of them, and adds up what they return. What lies outside of a call - logs,
callbacks, checkpoints, the position in the data - therefore sees a state in which no worker is at work.
"""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf

from mirrorkit.cluster import task_name, unreachable
from mirrorkit.data.records import Records
from mirrorkit.errors import ClusterError
from mirrorkit.strategy import ENDED_BY_OTHERS, first_replica, is_parameter_server, name_lost_workers
from mirrorkit.train.loop.calls import CallLength, Calls, Result
from mirrorkit.train.loop.pieces import HeldStream, Piece, pieces
from mirrorkit.train.loop.stream import Stream

_log = logging.getLogger("mirrorkit")

_CALL_SECONDS = 2.0  # what "auto" aims at: at its end workers wait for the last piece
_PIECES = 4  # for each worker in a call, so that a slow worker takes fewer
_POLL_SECONDS = 0.002
_LOOK_SECONDS = 2.0  # between two looks whether all tasks are there
_PATIENCE_SECONDS = 300.0  # without a single worker


def calls_for(
    strategy: tf.distribute.Strategy, step: Any, steps_per_call: int | str, *, jit_compile: bool = False
) -> tuple[Any, CallLength]:
    """Return what makes a loop's calls under this strategy, and what says how long they are."""
    replicas, remote = strategy.num_replicas_in_sync, is_parameter_server(strategy)
    if jit_compile and (replicas > 1 or remote):
        what = "parameter servers" if remote else f"{replicas} replicas"
        _log.warning(
            "Loop(jit_compile=True) was asked for with %s; XLA compiles whole calls of a single replica only, so calls "
            "are made as without it. Step(jit_compile=True) compiles what each replica computes.",
            what,
        )
        jit_compile = False
    if remote:
        return RemoteCalls(strategy, step), RemoteCallLength(strategy, steps_per_call, step.accumulate)
    calls = Calls(strategy, step, jit_compile=jit_compile)
    return calls, CallLength(strategy, steps_per_call, step.accumulate)


class RemoteCalls:
    """The functions of a loop under parameter servers; what `Calls` is under the other strategies.

    A piece is run again where its worker dies before it has answered, so some of its steps may be made twice; its
    totals are counted once.

    Args:
        strategy: a ParameterServerStrategy.
        step: a built `Step` or `CustomStep`.
    """

    def __init__(self, strategy: tf.distribute.Strategy, step: Any) -> None:
        self._strategy = strategy
        self._step = step
        self._coordinator = tf.distribute.experimental.coordinator.ClusterCoordinator(strategy)
        self._workers = len(_addresses(strategy, "worker"))
        self._traces: dict[Any, Any] = {}
        self._held: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        self.chief = tf.distribute.OneDeviceStrategy("/job:chief/replica:0/task:0/device:CPU:0")
        self.local = Calls(self.chief, step)  # makes calls in this process

    def train(self, stream: Stream, totals: tf.Tensor, steps: int) -> Result:
        """Train on the next `steps` batches, or as many as are left, adding to `totals`."""
        return self._call("train", stream, totals, steps, self._step.accumulate)

    def test(self, stream: Stream, totals: tf.Tensor, steps: int) -> Result:
        """Evaluate the next `steps` batches, or as many as are left, adding to `totals`."""
        return self._call("test", stream, totals, steps, 1)

    def predictions(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yield the outputs for each global batch, in order."""
        waiting: list[Any] = []
        for batch in batches:
            if "predict" not in self._traces:
                self._traces["predict"] = tf.function(self._predict, autograph=False, reduce_retracing=True)
            waiting.append(self._schedule(self._traces["predict"], (batch,)))
            if len(waiting) == 2 * self._workers:
                yield from self._fetched(waiting)
                waiting = []
        yield from self._fetched(waiting)

    @property
    def traces(self) -> int:
        """How many functions were compiled; a number that grows during training names a loss of time."""
        return len(self._traces)

    def _call(self, what: str, stream: Stream, totals: tf.Tensor, steps: int, accumulate: int) -> Result:
        start = time.perf_counter()
        at_once = max(1, steps // (accumulate * self._workers * _PIECES))
        scheduled = []
        for piece in pieces(stream, steps, accumulate, at_once):
            held = (self._arrays(stream),) if isinstance(stream, HeldStream) else ()
            epoch = tf.constant(getattr(stream, "epoch", 0), tf.int64)
            arguments = (tf.constant(piece.first, tf.int64), epoch, piece.columns, *held)
            scheduled.append((piece, self._schedule(self._trace(what, stream, piece), arguments)))
        results = self._fetched([result for _, result in scheduled])
        taken, bad = 0, None
        sums = np.array(totals, np.float64)
        for (piece, _), (added, good) in zip(scheduled, results, strict=True):
            sums += added.numpy()
            if bad is None and int(good) < piece.updates:
                bad = taken + int(good) * len(piece.sizes)
            taken += piece.steps
        stream.position += taken
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
        """Return when a worker was there last; raise when a parameter server is gone, or all workers are for long."""
        _require_servers(self._strategy)
        workers = _addresses(self._strategy, "worker")
        if len(unreachable(workers)) < len(workers):
            return time.monotonic()
        if time.monotonic() - last_seen > _PATIENCE_SECONDS:
            raise ClusterError(
                f"No worker has answered for {_PATIENCE_SECONDS:g} s ({_named(workers)}). Start them again; a run with "
                "mk.train.Checkpoints goes on from its newest checkpoint."
            )
        return last_seen

    def _arrays(self, stream: HeldStream) -> Any:
        """Return an iterator on each worker that gives the whole set; sent once."""
        if stream.data not in self._held:
            data = self._coordinator.create_per_worker_dataset(stream.arrays)
            self._held[stream.data] = iter(data)
        return self._held[stream.data]

    def _trace(self, what: str, stream: Stream, piece: Piece) -> Any:
        specs = [piece.spec(stream, place) for place in range(len(piece.sizes))]
        key = (what, stream.kind, repr(specs))
        if key not in self._traces:
            self._traces[key] = self._make(what, stream, specs)
        return self._traces[key]

    def _make(self, what: str, stream: Stream, specs: list[Any]) -> Any:
        update = self._train if what == "train" else self._test
        size, totals_size, loss_index = len(specs), self._step.totals_size, self._step.loss_index

        def many(first: tf.Tensor, epoch: tf.Tensor, columns: list[Any], *held: Any) -> tuple[tf.Tensor, tf.Tensor]:
            arrays = next(held[0]) if held else None
            updates = tf.shape(tf.nest.flatten(columns)[0], out_type=tf.int64)[0]

            def batch(place: int, index: tf.Tensor) -> Any:
                taken = tf.nest.map_structure(lambda column: column[index], columns[place])
                if isinstance(stream, HeldStream):
                    return stream.finish(arrays, taken, epoch, first + index * size + place)
                return taken

            def body(index: tf.Tensor, totals: tf.Tensor, good: tf.Tensor) -> tuple[tf.Tensor, ...]:
                batches = [batch(place, index) for place in range(size)]
                totals += tf.cast(update(batches, first + index * size), tf.float64)
                return index + 1, totals, good + tf.cast(tf.math.is_finite(totals[loss_index]), tf.int64)

            zero = tf.constant(0, tf.int64)
            start = (zero, tf.zeros([totals_size], tf.float64), zero)
            _, totals, good = tf.while_loop(lambda index, *_: index < updates, body, start, parallel_iterations=1)
            return totals, good

        scalar = tf.TensorSpec([], tf.int64)
        held = [tf.data.IteratorSpec(stream.arrays().element_spec)] if isinstance(stream, HeldStream) else []
        return tf.function(many, autograph=False, input_signature=[scalar, scalar, specs, *held])

    def _train(self, batches: list[Any], first_part: tf.Tensor) -> tf.Tensor:
        if hasattr(self._step, "train_parts"):
            return self._step.train_parts(batches, first_part)
        return self._step.train(batches[0])  # a step of the user's own, which accumulates by itself if it does

    def _test(self, batches: list[Any], first_part: tf.Tensor) -> tf.Tensor:
        del first_part
        return first_replica(self._strategy, self._strategy.run(self._step.test, args=(batches[0],)))

    def _predict(self, batch: Any) -> Any:
        return first_replica(self._strategy, self._strategy.run(self._step.predict, args=(batch,)))


class RemoteCallLength(CallLength):
    """How many steps a call of all workers together takes; "auto" follows their speed from call to call."""

    def __init__(self, strategy: tf.distribute.Strategy, asked: int | str, multiple: int = 1) -> None:
        super().__init__(strategy, asked, multiple)
        self._least = len(_addresses(strategy, "worker"))
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


@contextmanager
def explained(strategy: tf.distribute.Strategy, *data: Any) -> Iterator[None]:
    """Turn TensorFlow's errors about a task that is gone, or a damaged shard of `data`, into one that names it."""
    try:
        yield
    except tf.errors.DataLossError:  # it tells the place within a shard, but not which
        for recipe in data:
            if isinstance(recipe, Records):
                _log.warning("A shard is damaged; reading the %d files to find out which.", len(recipe.files))
                recipe.verify()
        raise
    except ENDED_BY_OTHERS as error:
        if not is_parameter_server(strategy):
            name_lost_workers(strategy, error)
            raise
        _require_servers(strategy, error)
        raise ClusterError(
            f"The connection to a task was lost: {str(error).splitlines()[0]} Start all tasks again; a run with "
            "mk.train.Checkpoints goes on from its newest checkpoint."
        ) from error


def _require_servers(strategy: tf.distribute.Strategy, cause: BaseException | None = None) -> None:
    servers = _addresses(strategy, "ps")
    gone = unreachable(servers)
    if gone and cause is None:  # perhaps only too busy to answer
        gone = unreachable({task: servers[task] for task in gone})
    if gone:
        raise ClusterError(
            f"{_named({task: servers[task] for task in gone})} does not answer any more, and the variables it held are "
            "lost. Start all tasks again; a run with mk.train.Checkpoints goes on from its newest checkpoint."
        ) from cause


def _addresses(strategy: tf.distribute.Strategy, job: str) -> dict[str, str]:
    spec = strategy._cluster_resolver.cluster_spec()  # private to TensorFlow; the public property is None here
    return {task_name(job, index): spec.task_address(job, index) for index in range(spec.num_tasks(job))}


def _named(addresses: dict[str, str]) -> str:
    return ", ".join(f"{task} ({address})" for task, address in addresses.items())
