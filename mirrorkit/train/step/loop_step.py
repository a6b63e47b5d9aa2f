"""The interface between `Loop` and what it runs: what has these methods can be trained, evaluated and predicted with.

`Supervised` (a `mk.train.Step`), `KerasStep` (a model's own `train_step`) and `Custom` (a user's own step) have them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Literal, Protocol

import tensorflow as tf

from mirrorkit._types import KerasModel, Logs, Nest, Spec, Variable
from mirrorkit.errors import StepError
from mirrorkit.train.step.clock import Clock
from mirrorkit.train.step.global_batch import GlobalBatch

Pass = Literal["train", "test"]
FirstOf = Literal["train", "test", "predict"]
Need = Literal["train", "evaluate", "predict", "class_weight"]


class LoopStep(Protocol):
    """A step that is built for a strategy; what is given here is right for one whose code is the user's.

    Its *totals* are a flat float vector of sums over examples. They add up over the steps of an epoch, and become logs
    at the end of each call: so many numbers, whatever the metrics.

    Attributes:
        accumulate: how many successive global batches make one update.
        loss_index: the entry of the totals that is not finite where the loss is not; entry 0 counts the examples.
        clock: what the host knows of the step that is running.
        jit_compile: whether XLA compiles it, a call on data on the device as a whole; "auto": if it can.
        model: what callbacks see.
    """

    accumulate: int = 1  # a user's step may accumulate by itself
    loss_index: int = 1
    clock: Clock
    jit_compile: bool | str = False
    model: KerasModel

    @property
    def variables(self) -> list[Variable]:
        """All that it may change."""

    @property
    def only_read(self) -> Sequence[Variable]:
        """Variables that training reads and no update writes, but perhaps a callback; known once it was traced."""
        return ()

    def can(self, what: Need) -> bool:
        """Return whether it can do this."""
        try:
            self.require(what)
        except StepError:
            return False
        return True

    def require(self, what: Need) -> None:
        """Raise a `StepError` where it cannot do this."""

    def averaged(self) -> AbstractContextManager[None]:
        """Let the weights be their averages within the block; raise a `StepError` where there are none."""
        raise no_averages("A step of your own, or a model with a train_step of its own,")

    def prepare(self, element_spec: Spec, what: Pass = "train") -> None:
        """Check batches like these, and find out, the first time, what their totals hold."""

    def totals_size(self, what: Pass = "train") -> int:
        """Return the number of values in the totals; after `prepare`."""

    def describe_totals(self) -> list[str]:
        """Return in words what the totals of a training add up, so that others are told apart; after `prepare`."""

    @property
    def modes(self) -> Mapping[str, str]:
        """For each log name "max" or "min", whichever is better, where that is known; after `prepare`."""
        return {}

    @property
    def of_epoch(self) -> Sequence[Variable]:
        """Variables that hold what an epoch adds up, besides the totals; `begin` empties them."""
        return ()

    def begin(self, what: Pass) -> None:
        """Begin an epoch, or an evaluation, at its first batch; after `prepare`."""
        return

    def train(self, batches: Sequence[GlobalBatch], first_part: int | tf.Tensor = 0) -> tf.Tensor:
        """Make one update of these batches and return its totals; in cross-replica context.

        Args:
            batches: as many as `accumulate` says, or fewer at the end of the data.
            first_part: number of the first batch among those of which parts draw random numbers of their own.
        """

    def test(self, batch: GlobalBatch) -> tf.Tensor:
        """Return what this replica's rows add to the totals, without training; in replica context."""

    def predict(self, batch: GlobalBatch) -> Nest:
        """Return the outputs for this replica's rows; in replica context."""

    def logs(self, totals: tf.Tensor, what: Pass = "train") -> Logs:
        """Turn totals, of one step or added up over many, into logs by name."""


def no_averages(step: str) -> StepError:
    """Return the error that a step has none."""
    return StepError(f"{step} keeps no averages of the weights. Give it a decay: Step(..., ema=0.999).")
