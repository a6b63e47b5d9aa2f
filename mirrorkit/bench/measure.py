"""Train layouts in turns, each in a process of its own, and collect speed and accuracy."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from mirrorkit.bench.layout import Layout
from mirrorkit.bench.machine import about
from mirrorkit.bench.remote import Member, Remote, in_turns
from mirrorkit.errors import MirrorkitError
from mirrorkit.whole import is_whole

LEFT_OUT = "left out: no time was left for it"
MOST_EPOCHS = 10  # of a turn whose length is chosen here
_TURN = 2.0  # its seconds, about


@dataclass
class Measured:
    """What was found of one layout.

    Attributes:
        speeds: examples per second, turn by turn.
        facts: the data's name and number of examples, and the strategy.
        accuracy: on the test set, after all turns.
        error: why there are no figures.
    """

    speeds: list[float] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    accuracy: float | None = None
    error: str | None = None


def train_in_turns(
    jobs: Mapping[Any, tuple[Layout, int]], *, repeats: int, epochs: int, warm_up: int, **training: Any
) -> dict[Any, Measured]:
    """Train every layout with its global batch size.

    Args:
        jobs: layout and global batch size; when the first one fails, so does all.
        repeats: turns of each.
        epochs: of a turn.
        warm_up: epochs before the first turn.
        **training: further arguments of `training.Training`.

    Raises:
        MirrorkitError: the first layout could not be measured, or nothing to measure is asked for.
        ModelError: the zoo has no such model.
    """
    for name, count in {"repeats": repeats, "epochs": epochs, "examples": training["examples"]}.items():
        if count is not None and not is_whole(count):
            raise MirrorkitError(f"{name}={count!r} was asked for; it must be a whole number from 1 on.")
    if ":" not in training["model"]:
        from mirrorkit.models import registry  # here, so that the command's --help needs no TensorFlow

        registry.find(training["model"])
    found = {key: Measured() for key in jobs}
    with ExitStack() as stack:
        remotes: dict[Any, Remote] = {}
        for number, (key, (layout, batch_size)) in enumerate(jobs.items()):
            members = layout.members(**training, batch_size=batch_size)
            remote = stack.enter_context(Remote("mirrorkit.bench.training:Training", *members))
            try:
                found[key].facts = remote.call("facts")
                if warm_up:
                    remote.call("train", epochs=warm_up)
                remotes[key] = remote
            except MirrorkitError as error:
                if number == 0:
                    raise
                found[key].error = str(error)
        calls = {key: lambda remote=remote: remote.call("train", epochs=epochs) for key, remote in remotes.items()}
        for key, turns in in_turns(calls, repeats).items():
            found[key].speeds, found[key].error = turns.answers, turns.error
            if turns.error is not None and key == next(iter(jobs)):
                raise MirrorkitError(turns.error)
            if turns.error is None:
                found[key].accuracy = remotes[key].call("evaluate")
    return found


class Job(NamedTuple):
    """An object such as `training.Training` ("module:class"), and the processes in which it is made."""

    target: str
    members: Sequence[Member]


class Budget:
    """The seconds that a benchmark may take, and the longest that one of its jobs took to start so far."""

    def __init__(self, seconds: float) -> None:
        self.end = time.monotonic() + seconds
        self.slowest = 0.0
        self._seconds = seconds

    @property
    def left(self) -> float:
        """Seconds until the end."""
        return self.end - time.monotonic()

    @property
    def patience(self) -> float:
        """Seconds to wait for an answer: a job that hangs, as NCCL sometimes does, must not take all that is left."""
        return min(self.left, max(60.0, self._seconds / 8))


def train_within(jobs: Mapping[Any, Job], budget: Budget, *, seconds: float, repeats: int) -> dict[Any, Measured]:
    """Train all jobs in turns, as far as there is time; what fails or does not fit has an error in place of figures.

    Each has a process of its own. After an epoch that nobody measures, a turn takes as many epochs as fit into about
    two seconds.

    Args:
        jobs: objects as `training.Training`, the most telling ones first.
        budget: of the whole benchmark: nothing goes on after it.
        seconds: of these jobs. The first two are started though they take longer, so that there is a comparison.
        repeats: turns of each; fewer when the budget ends.
    """
    begun = time.monotonic()
    found = {key: Measured() for key in jobs}
    started = 0
    calls: dict[Any, Any] = {}
    turn: dict[Any, float] = {}
    with ExitStack() as stack:
        for key, (target, members) in jobs.items():
            start = time.monotonic()
            needed = budget.slowest + repeats * (sum(turn.values()) + max(turn.values(), default=0.0))
            if needed > budget.left or (started > 1 and start - begun + needed > seconds):
                found[key].error = LEFT_OUT
                continue
            started += 1
            try:
                remote = stack.enter_context(Remote(target, *members, timeout=budget.patience))
                found[key].facts = remote.call("facts")
                remote.call("train", epochs=1)
                before = time.monotonic()
                remote.call("train", epochs=1)
                once = time.monotonic() - before
                epochs = min(MOST_EPOCHS, max(1, round(_TURN / max(once, 1e-3))))
                calls[key] = lambda remote=remote, epochs=epochs: remote.call("train", epochs=epochs)
                turn[key] = epochs * once
                budget.slowest = max(budget.slowest, time.monotonic() - start)
            except MirrorkitError as error:
                found[key].error = str(error)
        for key, turns in in_turns(calls, repeats, until=budget.end - sum(turn.values())).items():
            found[key].speeds, found[key].error = turns.answers, turns.error
    return found


def about_with_gpus() -> dict[str, Any]:
    """`machine.about`, with TensorFlow loaded, so that it knows the GPUs."""
    import tensorflow  # noqa: F401

    return about()
