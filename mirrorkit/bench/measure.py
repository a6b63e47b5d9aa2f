"""Train layouts in turns, each in a process of its own, and collect speed and accuracy."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from mirrorkit.bench.layout import Layout
from mirrorkit.bench.machine import about
from mirrorkit.bench.remote import Remote, in_turns
from mirrorkit.errors import MirrorkitError
from mirrorkit.whole import is_whole


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


def about_with_gpus() -> dict[str, Any]:
    """`machine.about`, with TensorFlow loaded, so that it knows the GPUs."""
    import tensorflow  # noqa: F401

    return about()
