"""Measure contenders in turns, A B C A B C, each in a process of its own, and collect speed and accuracy.

The speed of a machine changes within minutes (clock rate, other programs), so what is compared is measured in turns. A
contender is an object with `facts()`, which makes it ready and says what it is, and `measure(epochs)`, which returns a
figure; some have `evaluate()` and `input_rates()` too.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

from harness.processes import Group, Member
from harness.topology import Topology
from mirrorkit.arguments import is_whole, whole_number
from mirrorkit.errors import ArgumentError, MirrorkitError

TRAINING = "harness.training:Training"
LEFT_OUT = "left out: no time was left for it"
MOST_EPOCHS = 10  # of a turn whose length is chosen here
_TURN = 2.0  # its seconds, about


@dataclass
class Turns:
    """What one contender returned, turn by turn, or why it failed."""

    answers: list[Any] = field(default_factory=list)
    error: str | None = None


def in_turns(contenders: Mapping[Any, Callable[[], Any]], repeats: int, *, until: float = math.inf) -> dict[Any, Turns]:
    """Call each contender once, then each again, `repeats` times in all.

    After `until`, a time of `time.monotonic`, no further round begins; the first one always does. When a contender
    raises a `MirrorkitError`, the others go on.
    """
    whole_number("repeats", repeats, ArgumentError)
    turns = {name: Turns() for name in contenders}
    for number in range(repeats):
        if number and time.monotonic() > until:
            break
        for name, call in contenders.items():
            if turns[name].error is None:
                try:
                    turns[name].answers.append(call())
                except MirrorkitError as error:
                    turns[name].error = str(error)
    return turns


def values_in_turns(
    contenders: Mapping[Any, Callable[[], Any]], repeats: int, *, warm_up: int = 0
) -> dict[Any, list[Any]]:
    """Return what each contender returned in turns, after `warm_up` rounds that do not count; errors are raised."""
    whole_number("repeats", repeats, ArgumentError)
    rounds = [{name: call() for name, call in contenders.items()} for _ in range(warm_up + repeats)]
    return {name: [values[name] for values in rounds[warm_up:]] for name in contenders}


@dataclass
class Measured:
    """The result of one job."""

    speeds: list[Any] = field(default_factory=list)  # what `measure` returned, turn by turn; examples per second
    facts: dict[str, Any] = field(default_factory=dict)  # the data's name and number of examples, and the strategy
    accuracy: float | None = None  # on the test set, after all turns, where it was asked for
    input_rates: list[float] | None = None  # examples per second of each worker's input alone, where asked for
    error: str | None = None  # why there are no figures


class Job(NamedTuple):
    """An object such as `training.Training` ("module:class"), its arguments, and the processes in which it is made."""

    target: str
    layout: Topology
    arguments: Mapping[str, Any] = {}
    environment: Mapping[str, str] = {}

    @property
    def members(self) -> list[Member]:
        """Its processes."""
        members = self.layout.members(**self.arguments)
        return [replace(member, environment={**member.environment, **self.environment}) for member in members]


def check_work(*models: str, **counts: int | None) -> None:
    """Refuse unknown models and numbers that are not whole ones from 1 on, before anything starts."""
    from mirrorkit.models import find  # here, so that the command's --help needs no TensorFlow

    for name, count in counts.items():
        if count is not None and not is_whole(count):
            raise ArgumentError(f"{name}={count!r} was asked for; it must be a whole number from 1 on.")
    for model in models:
        if ":" not in model:
            find(model)


class Budget:
    """The seconds that a benchmark may take, and the longest that one of its jobs took to start so far."""

    def __init__(self, seconds: float = math.inf, *, share: float = 1 / 8) -> None:
        """`share` of the seconds is the longest wait for an answer, and at least a minute."""
        self.end = time.monotonic() + seconds
        self.slowest = 0.0
        self._patience = 900.0 if seconds == math.inf else max(60.0, seconds * share)

    @property
    def left(self) -> float:
        """Seconds until the end."""
        return self.end - time.monotonic()

    @property
    def patience(self) -> float:
        """Seconds to wait for an answer: a job that hangs, as NCCL sometimes does, must not take all that is left."""
        return min(self.left, self._patience)


def measure_in_turns(
    jobs: Mapping[Any, Job],
    *,
    repeats: int,
    epochs: int | None = None,
    warm_up: int = 1,
    evaluate: bool = False,
    inputs: bool = False,
    needs_first: bool = False,
    budget: Budget | None = None,
    seconds: float = math.inf,
    together: bool = False,
) -> dict[Any, Measured]:
    """Measure all jobs in turns while there is time; one that fails or does not fit has an error in place of figures.

    They start one after the other, so that none slows another down, or `together`.

    Args:
        jobs: the contenders, the most telling ones first.
        repeats: turns of each; fewer when the budget ends.
        epochs: of a turn; as many as fit into about two seconds by default.
        warm_up: epochs before the first turn.
        evaluate: take the accuracy at the end.
        inputs: of several workers that train in step, take the rate of each one's input alone, at the end.
        needs_first: raise when the first job fails.
        budget: of the whole benchmark: nothing goes on after it.
        seconds: of these jobs. The first two are started though they take longer, so that there is a comparison.
        together: start all at once, where making them ready takes long and is not measured.
    """
    budget = budget or Budget()
    begun = time.monotonic()
    found = {key: Measured() for key in jobs}
    first = next(iter(jobs), None)
    remotes: dict[Any, Group] = {}
    calls: dict[Any, Any] = {}
    turn: dict[Any, float] = {}
    with ExitStack() as stack:

        def ready(job: Job) -> tuple[Group, dict[str, Any]]:
            remote = stack.enter_context(Group(job.target, *job.members, timeout=budget.patience))
            facts = remote.call("facts")
            if warm_up:
                remote.call("measure", epochs=warm_up)
            return remote, facts

        ahead: dict[Any, Future[tuple[Group, dict[str, Any]]]] = {}
        if together and budget.slowest <= budget.left:
            with ThreadPoolExecutor(max(1, len(jobs))) as pool:
                ahead = {key: pool.submit(ready, job) for key, job in jobs.items()}
            budget.slowest = max(budget.slowest, time.monotonic() - begun)
        for key, job in jobs.items():
            start = time.monotonic()
            start_up = 0.0 if ahead else budget.slowest
            needed = start_up + repeats * (sum(turn.values()) + max(turn.values(), default=0.0))
            if needed > budget.left or (len(remotes) > 1 and start - begun + needed > seconds):
                found[key].error = LEFT_OUT
                continue
            try:
                remotes[key], found[key].facts = ahead[key].result() if ahead else ready(job)
                length, once = epochs, 0.0
                if length is None:
                    before = time.monotonic()
                    remotes[key].call("measure", epochs=1)
                    once = time.monotonic() - before
                    length = min(MOST_EPOCHS, max(1, round(_TURN / max(once, 1e-3))))
                calls[key] = partial(remotes[key].call, "measure", epochs=length)
                turn[key] = length * once
                budget.slowest = max(budget.slowest, time.monotonic() - start)
            except MirrorkitError as error:
                if needs_first and key == first:
                    raise
                found[key].error = str(error)
        for key, turns in in_turns(calls, repeats, until=budget.end - sum(turn.values())).items():
            found[key].speeds, found[key].error = turns.answers, turns.error
        if needs_first and found[first].error is not None:
            raise MirrorkitError(found[first].error)
        for key in calls if evaluate else ():
            if found[key].error is None:
                found[key].accuracy = remotes[key].call("evaluate")
        for key in calls if inputs else ():
            if found[key].error is None and jobs[key].layout.kind == "multi_worker":
                found[key].input_rates = remotes[key].call("input_rates")
    return found
