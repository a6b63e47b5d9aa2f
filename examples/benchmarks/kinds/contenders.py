"""Who trains a kind of work, each in a process of its own, as `harness.measure` calls it.

mirrorkit is loaded only where it is used, since its modules count as memory.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import keras
import tensorflow as tf
from contenders.work import Laps
from harness.peak_memory import peak_bytes

from kinds.known import KNOWN, REHEARSED
from kinds.models import BATCH_NORM, DEPTHS, FIRST, KINDS

_ALL = KINDS, BATCH_NORM, FIRST, DEPTHS, KNOWN, REHEARSED  # no two with one name


class Contender:
    """A model and its data; `work` names them, `kind` and `devices` the strategy, as `mk.strategy.create` does."""

    def __init__(self, work: str, optimizer: Any, steps: int | None, kind: str, devices: str) -> None:
        keras.utils.set_random_seed(0)
        self.strategy = self.create_strategy(kind, devices)
        (self.work,) = (table[work] for table in _ALL if work in table)
        keras.config.set_dtype_policy(self.work.policy)
        self.steps = steps or self.work.steps
        self.data = self.work.dataset()
        with self.strategy.scope() if self.strategy else contextlib.nullcontext():
            self.model, self.optimizer = self.work.model(), keras.optimizers.get(optimizer)
            self.train = self.build()

    def create_strategy(self, kind: str, devices: str) -> Any:
        """Make the strategy, or None."""
        import mirrorkit as mk

        return mk.strategy.create(kind, devices=devices)

    def build(self) -> Callable[..., Any]:
        """Make the rest, in the scope of the strategy, and return what `fit`s."""
        raise NotImplementedError

    def facts(self) -> dict[str, float]:
        """Return the seconds from the start of the first fit to the end of its one update."""
        start = time.perf_counter()
        self.train(self.data, epochs=1, steps_per_epoch=1, verbose=0)
        return {"first": time.perf_counter() - start}

    def measure(self, epochs: int) -> dict[str, Any]:
        """Train; return the seconds of a step in each epoch, and the process's peak memory in MB (see `peak`).

        An epoch before them makes the iterator and is not counted.
        """
        laps = Laps()
        options: dict[str, Any] = {"steps_per_epoch": self.steps, "callbacks": [laps.callback()], "verbose": 0}
        self.train(self.data, epochs=1 + epochs, **options)
        return {"step": [seconds / self.steps for seconds in laps.seconds[1:]], "peak": peak() / 1e6}


def peak() -> int:
    """The most bytes that this process held, on the first GPU where there is one."""
    if tf.config.list_logical_devices("GPU"):
        return tf.config.experimental.get_memory_info("GPU:0")["peak"]
    return peak_bytes()


class Fit(Contender):
    """Keras's fit; on one device without a strategy, as Keras's users write it.

    `of_compile` are options of `compile`.
    """

    def __init__(self, *arguments: Any, of_compile: dict[str, Any] | None = None, **others: Any) -> None:
        self.of_compile = of_compile or {}
        super().__init__(*arguments, **others)

    def create_strategy(self, kind: str, devices: str) -> Any:
        """See Contender."""
        return None if kind == "one_device" else super().create_strategy(kind, devices)

    def build(self) -> Callable[..., Any]:
        """See Contender."""
        self.model.compile(self.optimizer, loss=self.work.loss, metrics=["accuracy"], **self.of_compile)
        return self.model.fit


class Loop(Contender):
    """mirrorkit's Loop; `of_step` are options of `Step`."""

    def __init__(self, *arguments: Any, of_step: dict[str, Any] | None = None, **others: Any) -> None:
        self.of_step = of_step or {}
        super().__init__(*arguments, **others)

    def build(self) -> Callable[..., Any]:
        """See Contender."""
        import mirrorkit as mk

        step = mk.train.Step(self.model, self.optimizer, loss=self.work.loss, metrics=["accuracy"], **self.of_step)
        return mk.train.Loop(self.strategy, step).fit

    def facts(self) -> dict[str, float]:
        """See Contender; also the seconds of it that the checks of the first batch took, and those of tracing."""
        with timed_checks() as checks, timed_traces() as traces:
            return {**super().facts(), "checks": sum(checks), "tracing": sum(traces)}


@contextlib.contextmanager
def timed_checks() -> Iterator[list[float]]:
    """Take the seconds of each check of a first batch."""
    from mirrorkit.train.first_batch import later

    find, seconds = later.first_batch_check, []

    def found(*arguments: Any, **options: Any) -> Any:
        check = find(*arguments, **options)

        def timed(batch: Any) -> bool:
            start = time.perf_counter()
            try:
                return check(batch)
            finally:
                seconds.append(time.perf_counter() - start)

        return check and timed

    with mock.patch.object(later, "first_batch_check", found):
        yield seconds


@contextlib.contextmanager
def timed_traces() -> Iterator[list[float]]:
    """Take the seconds of each search for a compiled call; where there is none, it is traced."""
    from mirrorkit.train.calls.compiled import Calls

    trace, seconds = Calls._trace, []

    def timed(self: Calls, *arguments: Any) -> Any:
        start = time.perf_counter()
        try:
            return trace(self, *arguments)
        finally:
            seconds.append(time.perf_counter() - start)

    with mock.patch.object(Calls, "_trace", timed):
        yield seconds
