"""What the host knows of a step without asking a device: its number, and so its learning rate and its seeds.

A compiled call makes many steps, and on a GPU the host should run ahead of the device: each value that it fetches from
there waits for all the work before. So what is needed on the host is read once, before the first step of a call, and
counted on from there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, NamedTuple

import tensorflow as tf

from mirrorkit._types import KerasOptimizer, Variable
from mirrorkit.data import HOST
from mirrorkit.errors import StepError
from mirrorkit.optim import schedule_of
from mirrorkit.train.reduce.tracing import TraceOnce
from mirrorkit.variables import native

_APART = {"test": -1, "predict": -2}  # no number of a step


class Reading(NamedTuple):
    """What is known before a step; tensors on the host."""

    count: tf.Tensor  # steps that were made, int64 scalar
    seeds: dict[int, tf.Tensor]  # by the id of their variable
    apart: tuple[tf.Tensor, ...] = ()  # outside of training, what tells the batch from others; int64 scalars

    def outside(self, what: Literal["test", "predict"], *numbers: int | tf.Tensor) -> Reading:
        """Return the reading for a batch that is not trained on, which these numbers tell from others of its kind."""
        with tf.device(HOST):
            apart = tuple(tf.cast(number, tf.int64) for number in (_APART[what], *numbers))
        return self._replace(apart=apart)

    def place(self, part: int | tf.Tensor = 0, use: int = 0) -> tf.Tensor:
        """Return the numbers that name what a replica draws, int64 [N]; in replica context.

        They are the step and the shard in the update's batch number `part`, and where it is computed again before the
        update, how often it was (`use`).
        """
        context = tf.distribute.get_replica_context()
        with tf.device(HOST):
            shard = tf.cast(context.replica_id_in_sync_group, tf.int64)
            shard += tf.cast(part, tf.int64) * context.num_replicas_in_sync
            again = [tf.constant(use, tf.int64)] if use else []
            return tf.stack([*(self.apart or (self.count,)), shard, *again])


class Clock:
    """Counts the steps that were made, on the host; its attribute `draws` says whether a step draws random numbers.

    Args:
        optimizer: a built Keras optimizer, whose `iterations` count the updates; None for a step that needs no clock.
        counters: the variables that count steps: those with an update, and those without where a loss scale may skip
            one.
        seeds: variables that no step changes.
        always: whether a step may draw without them.
    """

    def __init__(
        self,
        optimizer: KerasOptimizer | None = None,
        counters: Sequence[Variable] = (),
        seeds: Sequence[Variable] = (),
        *,
        always: bool = False,
    ) -> None:
        self._optimizer = optimizer
        self._given = None if optimizer is None else schedule_of(optimizer)
        # A user's optimizer may count differently, or use its schedule in another way.
        self._counts_steps = optimizer is None or type(optimizer).__module__.startswith("keras.")
        self._counters = counters
        # Where steps may be skipped, only the device knows how many updates there were.
        self._schedule: TraceOnce | None = None
        if self._given is not None and len(counters) == 1 and self._counts_steps:
            self._schedule = TraceOnce(self._given)  # which refuses a schedule with a state
        self._seeds = seeds
        self.draws = bool(seeds) or always
        self._now: Reading | None = None
        # The learning rate of this step, by the optimizer's schedule; None where the optimizer computes it.
        self.rate: tf.Tensor | None = None

    @property
    def counts(self) -> bool:
        """Whether what is read grows by one with each step."""
        return bool(self._counters) and self._counts_steps

    def read(self) -> Reading:
        """Ask the device."""
        with tf.device(HOST):
            counts = [tf.cast(tf.identity(native(counter)), tf.int64) for counter in self._counters]
            count = tf.add_n(counts) if counts else tf.constant(0, tf.int64)
            return Reading(count, {id(seed): tf.identity(native(seed)) for seed in self._seeds})

    @contextmanager
    def at(self, start: Reading, index: tf.Tensor) -> Iterator[None]:
        """Within the block it is the `index`-th step after `start` was read, and no value is read from a device."""
        reading = None
        if self._counts_steps:
            with tf.device(HOST):
                count = start.count + tf.cast(index, tf.int64)
                self.rate = None if self._schedule is None else self._schedule(count)
            reading = Reading(count, start.seeds)
        with self.given(reading):
            yield

    @contextmanager
    def given(self, reading: Reading | None) -> Iterator[None]:
        """Within the block no value is read from a device where there is a reading: that of a batch, or of a step."""
        self._now = reading
        try:
            yield
        finally:
            self._now = self.rate = None

    def require_same_schedule(self) -> None:
        """Refuse another schedule than the one that the step was built with: it is compiled into the step."""
        if self._optimizer is not None and schedule_of(self._optimizer) is not self._given:
            raise StepError(
                "The optimizer's learning rate became another schedule after the step was built, which would not see "
                "it. Make a new step and loop, or give the optimizer a number, which may change at any time."
            )

    def nowhere(self) -> Reading:
        """Return a reading for which no device is asked: no step, and no seed is known."""
        return Reading(tf.constant(0, tf.int64), {})

    def now(self) -> Reading:
        """Return the steps before this one, and the seeds; a step that draws no random numbers needs neither."""
        if not self.draws:
            return self.nowhere()
        return self.read() if self._now is None else self._now

    def outside(self, what: Literal["test", "predict"], part: int | tf.Tensor) -> Reading:
        """Return the reading for the batch without training that is computed; `part` is its number where none is."""
        if self._now is not None and self._now.apart:
            return self._now
        now = self.read()
        return now.outside(what, now.count, part)
