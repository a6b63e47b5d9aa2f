"""What is checked before the first pass of a kind, for each kind of step."""

from __future__ import annotations

import functools
from collections.abc import Callable

from mirrorkit._types import Batch
from mirrorkit.errors import StepError
from mirrorkit.train.first_batch.own_draws import require_own_draws
from mirrorkit.train.first_batch.parts import compare_parts
from mirrorkit.train.first_batch.predictions import check_predictions
from mirrorkit.train.first_batch.same_results import require_same_results
from mirrorkit.train.first_batch.shares import compare_shares
from mirrorkit.train.step.custom import Custom
from mirrorkit.train.step.keras_step import KerasStep
from mirrorkit.train.step.loop_step import FirstOf, LoopStep, Pass
from mirrorkit.train.step.supervised import Supervised


@functools.singledispatch
def first_batch_check(step: LoopStep, what: FirstOf = "train") -> Callable[[Batch], None] | None:
    """Return what checks a global batch before the first pass of a kind; None without need."""
    raise NotImplementedError(f"Nothing checks the first batch of a {type(step).__name__}.")


@first_batch_check.register(Supervised)
def _of_step(step: Supervised, what: FirstOf = "train") -> Callable[[Batch], None] | None:
    shards = step.strategy.num_replicas_in_sync * (step.accumulate if what == "train" else 1)
    if shards == 1 or what in step.checked:
        return None
    if what == "predict":
        skipped = step.is_synchronized or "rows" in step.options.unchecked
        return None if skipped else functools.partial(_check_predictions, step)
    return None if "train" in step.checked else functools.partial(_check_batch, step, what)


@first_batch_check.register(Custom)
def _of_custom_step(step: Custom, what: FirstOf = "train") -> Callable[[Batch], None] | None:
    skipped = step.strategy.num_replicas_in_sync == 1 or "seeds" in step.unchecked or what in step.checked
    return None if what != "train" or skipped else functools.partial(_check_draws, step)


@first_batch_check.register(KerasStep)
def _of_keras(step: KerasStep, what: FirstOf = "train") -> Callable[[Batch], None] | None:
    skipped = step.strategy.num_replicas_in_sync == 1 or "rows" in step.unchecked or what in step.checked
    return None if what == "predict" or skipped else functools.partial(_check_shares, step, what)


def _check_batch(step: Supervised, what: Pass, batch: Batch) -> None:
    step.prepare(batch)
    unchecked, totals = step.options.unchecked, step.totals
    known = {*totals.losses.own_names, *totals.metrics.names, "loss", "add_loss", "rows", "state"}
    if unknown := sorted(set(unchecked) - known):
        raise StepError(f"unchecked={unknown} names nothing that is checked; {', '.join(sorted(known))} are.")
    compare_parts(step, step.unpack(batch), training=what == "train")
    require_same_results(step, batch, training=what == "train")
    step.checked.add(what)


def _check_shares(step: KerasStep, what: Pass, batch: Batch) -> None:
    if compare_shares(step, batch, what):
        step.checked.add(what)


def _check_predictions(step: Supervised, batch: Batch) -> None:
    check_predictions(step, batch)
    step.checked.add("predict")


def _check_draws(step: Custom, batch: Batch) -> None:
    require_own_draws(step, batch)
    step.checked.add("train")
