"""What is checked before the first pass of a kind, for each kind of step."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

from mirrorkit._keras import keras
from mirrorkit._types import Batch
from mirrorkit.train.first_batch.own_draws import require_own_draws
from mirrorkit.train.first_batch.parts import compare_parts, compare_shares
from mirrorkit.train.keras_model.attributes import attributes_kept
from mirrorkit.train.keras_model.layer_state import layers_of
from mirrorkit.train.step.custom import Custom
from mirrorkit.train.step.keras_step import KerasStep
from mirrorkit.train.step.loop_step import FirstOf, LoopStep
from mirrorkit.train.step.supervised import Supervised

Check = Callable[..., bool | None]  # of a step, a global batch and the kind of pass; False: of too few rows to tell


def first_batch_check(step: Any, what: FirstOf = "train", *, again: bool = False) -> Callable[[Batch], None] | None:
    """Return what checks a global batch before the first pass of a kind of a `LoopStep`; None without need.

    With `again`, return what compares a batch with its parts later in the training.
    """
    if what in step.checked and not again:
        return None
    check = _check_again(step) if again else _check_of(step, what)
    if check is None:
        return None

    def checked(batch: Batch) -> None:
        with attributes_kept(_of_users(step)):
            is_done = check(step, batch, what) is not False
        if is_done:
            step.checked.add(what)

    return checked


def _check_of(step: LoopStep, what: FirstOf) -> Check | None:
    if isinstance(step, Supervised):
        return _of_step(step, what)
    if isinstance(step, Custom):
        skipped = step.strategy.num_replicas_in_sync == 1 or "seeds" in step.unchecked
        return None if what != "train" or skipped else lambda step, batch, _: require_own_draws(step, batch)
    if isinstance(step, KerasStep):
        skipped = step.strategy.num_replicas_in_sync == 1 or "rows" in step.unchecked
        return None if what == "predict" or skipped else compare_shares
    raise NotImplementedError(f"Nothing checks the first batch of a {type(step).__name__}.")


def _check_again(step: LoopStep) -> Check | None:
    if isinstance(step, KerasStep):
        return _check_of(step, "train")
    return functools.partial(compare_parts, again=True) if getattr(step, "shards", 1) > 1 else None


def _of_users(step: LoopStep) -> Iterator[Any]:
    """Yield the layers, metrics and losses that a step calls; a custom step is not run by its check."""
    if isinstance(step, Custom):
        return
    yield from layers_of(step.model)
    yield from step.model.metrics
    if isinstance(step, Supervised) and not step.options.takes_batches:
        given = keras.tree.flatten([step.options.losses, step.options.metrics])
        yield from (one for one in given if not isinstance(one, type))


def _of_step(step: Supervised, what: FirstOf) -> Check | None:
    if what != "predict":
        return compare_parts
    unchecked = step.is_synchronized or step.options.runs_keras or "rows" in step.options.unchecked
    return None if step.strategy.num_replicas_in_sync == 1 or unchecked else compare_parts
