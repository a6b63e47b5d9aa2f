"""The values of a step's variables on their way to a checkpoint and back."""

from __future__ import annotations

import logging
import os
import re
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mirrorkit._types import Json, Variable
from mirrorkit.errors import ArgumentError, CheckpointError
from mirrorkit.train.checkpoints import file as checkpoint_file
from mirrorkit.train.checkpoints.position import Position
from mirrorkit.train.step.requirements import variables_of
from mirrorkit.variables import assign, copies, path

_log = logging.getLogger("mirrorkit")

_SHOWN = 10  # differences in an error message


def restore_newest(folder: str | os.PathLike[str], variables: Sequence[Variable]) -> Position:
    """Write the newest whole checkpoint of a folder into the variables; return its position in the run.

    A damaged one is named in a warning, and the one before it taken.

    Raises:
        CheckpointError: there is none, none is whole, or it is of another model; then no variable was written.
        FileError: the folder or a file in it cannot be read.
    """
    place = local_folder(folder)
    files = checkpoint_file.find(place)
    if not files:
        raise CheckpointError(f"There is no checkpoint in {place}. Checkpoints are files step-<number>.npz.")
    damaged = []
    for file in files:
        try:
            about, values = checkpoint_file.read(file)
        except checkpoint_file.DamagedError as error:
            damaged.append(str(error))
            continue
        require_same(file, about["variables"], describe(variables))
        if damaged:
            warnings.warn(f"Damaged checkpoint, the one before it is used: {'; '.join(damaged)}.", stacklevel=3)
        for variable, value in zip(variables, values, strict=True):
            assign(variable, value)
        position = Position.from_json(about["position"])
        _log.info("%s: resumes in epoch %d at batch %d.", file, position.epoch, position.batch)
        return position
    raise CheckpointError(
        f"No checkpoint in {place} is whole: {'; '.join(damaged)}. To start over, use another folder or move these "
        "files away."
    )


def require_variables(step: object) -> list[Variable]:
    """Return the variables of a step; refuse one that does not say which they are."""
    return variables_of(step, "a checkpoint would be empty")


def local_folder(folder: str | os.PathLike[str]) -> Path:
    """Return the folder as a path; refuse an address (`gs://...`)."""
    if not isinstance(folder, (str, os.PathLike)):
        raise ArgumentError(f"Checkpoints need the path of a folder, found {folder!r}.")
    if "://" in os.fspath(folder):
        raise ArgumentError(f"Checkpoints need a folder of the file system, found {folder}. Mount the storage.")
    return Path(folder)


def capture(variables: Sequence[Variable]) -> list[np.ndarray]:
    """Copy the values off the device. All replicas hold the same, so the first one's stand for all."""
    return [copies(variable)[0].numpy() for variable in variables]


def describe(variables: Sequence[Variable]) -> list[Json]:
    """Return path, shape and dtype of each variable; refuse one whose values are not numbers."""
    found = [
        {"path": path(v), "shape": [int(size) for size in v.shape], "dtype": getattr(v.dtype, "name", v.dtype)}
        for v in variables
    ]
    for one in found:
        if one["dtype"] in ("string", "resource", "variant"):
            raise CheckpointError(f"The variable {one['path']} is of dtype {one['dtype']}; checkpoints hold numbers.")
    return found


def require_same(file: Path, saved: Sequence[Json], present: Sequence[Json]) -> None:
    """Refuse a checkpoint whose variables are not those of the step; list what is missing, extra, or different.

    They must agree in order, shape, dtype and path. Keras's running numbers in the paths do not count, as they depend
    on what else the process has made (`dense_3/kernel` is `dense/kernel`).
    """
    known, wanted = _numbered(saved), _numbered(present)
    lines = [f"not in the checkpoint: {_text(wanted[key])}" for key in wanted.keys() - known.keys()]
    lines += [f"only in the checkpoint: {_text(known[key])}" for key in known.keys() - wanted.keys()]
    both = [(known[key], wanted[key]) for key in known.keys() & wanted.keys()]
    lines += [
        f"other shape or dtype: {_text(there)} in the checkpoint, {_text(here)} here"
        for there, here in both
        if (there["shape"], there["dtype"]) != (here["shape"], here["dtype"])
    ]
    if not lines and list(known) != list(wanted):
        lines = ["the same variables, but in another order"]
    if lines:
        lines = sorted(lines)
        more = [f"and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else []
        raise CheckpointError(
            f"The checkpoint {file} is of another model or optimizer:\n  " + "\n  ".join(lines[:_SHOWN] + more) + "\n"
            "Nothing was restored. Build model, optimizer and step as they were when it was saved, or use another "
            "folder."
        )


def _numbered(described: Sequence[Json]) -> dict[tuple[str, int], Json]:
    """Return the descriptions by path without Keras's running numbers; a count tells equal paths apart."""
    seen: Counter[str] = Counter()
    numbered = {}
    for one in described:
        bare = re.sub(r"_\d+", "", one["path"])
        numbered[bare, seen[bare]] = one
        seen[bare] += 1
    return numbered


def _text(described: Json) -> str:
    return f"{described['path']} {described['dtype']} {described['shape']}"
