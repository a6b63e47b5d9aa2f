"""Restore the newest whole checkpoint of a folder."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow as tf

from mirrorkit._types import Variable
from mirrorkit.data import HOST
from mirrorkit.errors import CheckpointError
from mirrorkit.train.checkpoints.callback_states import State
from mirrorkit.train.checkpoints.file import DamagedError
from mirrorkit.train.checkpoints.locating import folder_of, place_of
from mirrorkit.train.checkpoints.position import Position
from mirrorkit.train.checkpoints.variables import describe, places_of, require_same
from mirrorkit.train.requirements.model import variables_of
from mirrorkit.train.step.sharded_slots import WholeSlot
from mirrorkit.train.step.step import Step
from mirrorkit.variables import assign, is_sharded, native

_log = logging.getLogger("mirrorkit")


@dataclass(frozen=True)
class Restored:
    """What a checkpoint holds beside the variables: the position, and what callbacks remembered, if it says so."""

    position: Position
    states: Sequence[State] | None


def restore_newest(folder: str | os.PathLike[str], step: object, *, looks: int = 100) -> Restored:
    """Write the newest whole checkpoint of a folder into a step's variables; return what else it holds.

    A damaged one is named in a warning, and the one before it taken. A step that does not train takes the variables of
    its model out of a checkpoint of the training. Where a run that saves has removed what was seen, it looks again, at
    most so many times.

    Raises:
        CheckpointError: there is none, none is whole, or it is of another model; then no variable was written.
        FileError: the folder or a file in it cannot be read.
    """
    place = place_of(folder_of(folder))
    names = place.find()
    if not names:
        raise CheckpointError(f"There is no checkpoint in {place.name}. Checkpoints are files step-<number>.npz.")
    variables, trains = require_variables(step), True
    if isinstance(step, Step) and step.optimizer is None:
        trains = False
        of_model = {id(native(variable)) for variable in step.model.variables}
        variables = [variable for variable in variables if id(native(variable)) in of_model]
    damaged, wanted = [], describe(variables)
    for name in names:
        try:
            about, values = place.read(name, wanted if trains else None)
        except DamagedError as error:
            damaged.append(str(error))
            continue
        if damaged:
            warnings.warn(f"Damaged checkpoint, the one before it is used: {'; '.join(damaged)}.", stacklevel=3)
        if not trains:
            places = places_of(about["variables"], wanted)
            require_same(f"{place.name}/{name}", [about["variables"][i] for i in places], wanted)
            values = [values[i] for i in places]
        for variable, value in zip(variables, values, strict=True):
            with tf.device(HOST):  # one tensor for the copies of all replicas, which CPUs share
                tensor = tf.convert_to_tensor(value)
            assign(variable, tensor)
        position = Position.from_json(about["position"])
        _log.info("%s/%s: resumes in epoch %d at batch %d.", place.name, name, position.epoch, position.batch)
        return Restored(position, about.get("callbacks"))
    if looks and place.find() != names:
        return restore_newest(folder, step, looks=looks - 1)
    raise CheckpointError(
        f"No checkpoint in {place.name} is whole: {'; '.join(damaged)}. To start over, use another folder or move "
        "these files away."
    )


def require_variables(step: object) -> list[Variable | WholeSlot]:
    """Return the variables of a step, whole slots of sharded ones; refuse a step that does not say which they are."""
    variables = variables_of(step, "a checkpoint would be empty")
    saved: list[Variable | WholeSlot] = list(getattr(step, "saved_variables", variables))
    if any(map(is_sharded, saved)):
        raise CheckpointError(
            f"The `variables` of {type(step).__name__} include slots of a Step(shard_optimizer=True), which are "
            "divided among replicas. Give it a property `saved_variables` too: the `saved_variables` of its steps, one "
            "after the other."
        )
    return saved
