"""What is checked before the first pass of a kind, for each kind of step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from mirrorkit._keras import keras
from mirrorkit._types import Batch
from mirrorkit.train.first_batch.parts import compare_parts
from mirrorkit.train.first_batch.sampled_rows import size_of
from mirrorkit.train.keras_model.attributes import attributes_kept
from mirrorkit.train.keras_model.layer_state import layers_of
from mirrorkit.train.step.custom import Custom
from mirrorkit.train.step.keras_step import KerasStep
from mirrorkit.train.step.loop_step import FirstOf, LoopStep
from mirrorkit.train.step.supervised import Supervised
from mirrorkit.variables import copies

_SMALL = 16  # numbers in a variable, at most, that may be a switch


def first_batch_check(
    step: Any, what: FirstOf = "train", *, again: bool = False, begins: bool = True
) -> Callable[[Batch], bool] | None:
    """Return what checks a global batch before a pass of a kind of a `LoopStep`; None without need.

    It returns whether the batch could tell a difference, and is needed until one could; then before the next pass, the
    one after the next, the fourth, the eighth, ..., which may be over other data, and where a variable has changed that
    only evaluation or prediction may read. With `again`, return what compares a batch with its parts later in the
    training, which `LaterChecks` asks for. `begins` says whether a pass begins with it.
    """
    is_known = what in step.checked
    if is_known and not again and not step.checked[what].is_due_before_a_pass():
        return None
    if not _is_checked(step, what):
        return None

    def checked(batch: Batch) -> bool:
        with attributes_kept(_of_users(step)):
            is_done = size_of(batch) != 0 and compare_parts(step, batch, what, again=again or is_known)
        if is_done and what not in step.checked:
            step.checked[what] = Switches(step, begins=begins)
        return is_done

    return checked


def _is_checked(step: Any, what: FirstOf) -> bool:
    if isinstance(step, Custom):
        return False
    is_cut = step.strategy.num_replicas_in_sync * (step.accumulate if what == "train" else 1) > 1
    is_keras = isinstance(step, KerasStep)
    is_left_out = (is_keras or what == "predict") and "rows" in step.options.unchecked
    if what == "predict":
        is_left_out |= is_keras or step.is_synchronized or step.options.runs_keras
    return is_cut and not is_left_out


class Switches:
    """Small variables of a step that it reads and no update writes: callbacks and users may change them."""

    def __init__(self, step: LoopStep, *, begins: bool = True) -> None:
        self._step = step
        self._values, self._changes = self._read(), Counter[int]()
        self._passes = 0 if begins else -1  # since the one that it was made for

    def is_due(self) -> bool:
        """Return whether one has changed since this was asked last, for the first, second, fourth, ... time."""
        now, before = self._read(), self._values
        self._values = before | now
        changed = [one for one, value in now.items() if before.get(one, value) != value]
        self._changes.update(changed)
        return any(self._changes[one].bit_count() == 1 for one in changed)  # 1, 2, 4, ...

    def is_due_before_a_pass(self) -> bool:
        """Return whether one has changed so, or it is the first, second, fourth, ... pass that asks."""
        self._passes += 1
        return self.is_due() or self._passes.bit_count() == 1

    def _read(self) -> dict[int, bytes]:
        small = [one for one in self._step.only_read if np.prod(one.shape) <= _SMALL]
        return {id(one): copies(one)[0].numpy().tobytes() for one in small}


def _of_users(step: Supervised | KerasStep) -> Iterator[Any]:
    """Yield the layers, metrics and losses that a step calls."""
    yield from layers_of(step.model)
    yield from step.model.metrics
    if isinstance(step, Supervised) and not step.options.takes_batches:
        given = keras.tree.flatten([step.options.losses, step.options.metrics])
        yield from (one for one in given if not isinstance(one, type))
