"""Whether an epoch that a checkpoint interrupted can be finished: on the same examples, with the same sums."""

from __future__ import annotations

import logging
from typing import Any

from mirrorkit.errors import CheckpointError
from mirrorkit.train.checkpoints.callback_states import CallbackStates
from mirrorkit.train.checkpoints.position import Position
from mirrorkit.train.input.input import Input
from mirrorkit.train.step.loop_step import LoopStep
from mirrorkit.variables import Snapshot

_log = logging.getLogger("mirrorkit")

_AT_ITS_END = "go on from a checkpoint made at the end of an epoch"

_ON_THE_DATA = (
    f"Finish the epoch on the data that it began with, or {_AT_ITS_END}, where data may change. To start the epoch "
    "again: loop.restore(folder), loop.position.batch = 0, and fit with Checkpoints in another folder."
)

_OTHER_ORDER = {  # what a `Position` holds: where it has changed, what began and what was found, and the cure
    "order_version": (
        "in version {} of the order of shuffled examples; this mirrorkit gives version {}",
        f"Finish the epoch with the version of mirrorkit that began it, or {_AT_ITS_END}.",
    ),
    "order_workers": (
        "with {} as the number of workers; found {}. The batches of this data (from_function) depend on it",
        f"Finish the epoch on as many workers, or {_AT_ITS_END}.",
    ),
    "global_batch_size": ("of {} examples; found batches of {}", _ON_THE_DATA),
    "num_examples": ("of data with {} examples; found {} examples", _ON_THE_DATA),
    "order": ("of data with {}; found {}", _ON_THE_DATA),
}


def call_epoch_begin(hooks: Any, position: Position, step: LoopStep, states: CallbackStates) -> None:
    """Tell the callbacks that an epoch begins.

    What they write then into variables, such as half of the learning rate, is in a checkpoint made within the epoch,
    and so is what they remember. A run that goes on from there keeps the restored values: written twice, the rate
    would be a quarter.
    """
    if not position.batch:
        hooks.on_epoch_begin(position.epoch)
        return
    restored, kept = Snapshot(step.variables), states.kept()
    hooks.on_epoch_begin(position.epoch)
    restored.put_back()
    states.put_back(kept)


def begin_epoch(position: Position, data: Input, step: LoopStep) -> None:
    """Note with which data and sums an epoch begins."""
    vars(position).update(data.order, sums=_sums(data, step))


def require_same_epoch(position: Position, data: Input, step: LoopStep) -> None:
    """Refuse to finish an epoch with other data or sums than it began with; what is not known is not compared."""
    where = f"The checkpoint was made after {position.batch} batches of epoch {position.epoch} (counted from 0)"
    began, found = position.sums or [], _sums(data, step)
    if began and began != found:
        pairs = zip([*began, *["nothing"] * len(found)], [*found, *["nothing"] * len(began)], strict=True)
        before, now = next(pair for pair in pairs if pair[0] != pair[1])
        raise CheckpointError(
            f"{where}, whose sums were those of {before}; found {now}. A mean of both would be neither. Finish the "
            f"epoch with the losses and metrics that it began with, or {_AT_ITS_END}, where they may change."
        )
    if position.batch != data.steps:  # some of the epoch is left
        _require_same_order(position, data, where)


def _sums(data: Input, step: LoopStep) -> list[str]:
    """Return a description of each sum of an epoch."""
    weights = {int(index): float(weight) for index, weight in sorted((data.class_weight or {}).items())}
    return [*step.describe_totals(), *([f"examples weighted by {weights}"] if weights else [])]


def _require_same_order(position: Position, data: Input, where: str) -> None:
    for name, (differs, cure) in _OTHER_ORDER.items():
        began, found = getattr(position, name), data.order[name]
        if began is not None and found is not None and began != found:
            raise CheckpointError(
                f"{where}, {differs.format(began, found)}, so the rest of the epoch would repeat some examples and "
                f"leave out others. {cure}"
            )
    if data.steps is not None and position.batch > data.steps:
        raise CheckpointError(
            f"{where}; found data with {data.steps} batches per epoch. Finish the epoch with as many as it began with "
            f"(steps_per_epoch), or {_AT_ITS_END}."
        )
    if data.starts_over:
        _log.warning(
            "%s. Now the dataset starts over and its first %d batches are skipped. If it shuffles, the rest of the "
            "epoch repeats some examples and leaves out others. Recipes (mk.data.batches, records, source, ...) go on "
            "exactly.",
            where,
            position.batch,
        )
