"""What a step's variables are, as a checkpoint says it, and whether another step's fit."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from pathlib import Path

from mirrorkit._types import Json, Variable
from mirrorkit.errors import CheckpointError
from mirrorkit.printing import few
from mirrorkit.train.step.sharded_slots import WholeSlot
from mirrorkit.variables import path

_SHOWN = 20  # lines of differences in an error message


def describe(variables: Sequence[Variable | WholeSlot]) -> list[Json]:
    """Return path, shape and dtype of each variable; refuse one whose values are not numbers."""
    found = [
        {"path": path(v), "shape": [int(size) for size in v.shape], "dtype": getattr(v.dtype, "name", v.dtype)}
        for v in variables
    ]
    for one in found:
        if one["dtype"] in ("string", "resource", "variant"):
            raise CheckpointError(f"The variable {one['path']} is of dtype {one['dtype']}; checkpoints hold numbers.")
    return found


def places_of(saved: Sequence[Json], present: Sequence[Json]) -> list[int]:
    """Return for each variable that is present in both its place among those that were saved."""
    by_path: dict[str, list[int]] = {}
    for place, one in enumerate(saved):
        by_path.setdefault(_bare(one["path"]), []).append(place)
    found = (by_path.get(_bare(one["path"])) for one in present)
    return [places.pop(0) for places in found if places]  # of equal paths in their order


def require_same(file: Path | str, saved: Sequence[Json], present: Sequence[Json]) -> None:
    """Refuse a checkpoint whose variables are not those of the step, and list what differs.

    They must agree in order, shape, dtype and path. Keras's running numbers in the paths do not count, as they depend
    on what else the process has made (`dense_3/kernel` is `dense/kernel`).
    """
    there, here = _lines(saved), _lines(present)
    if there == here:
        return
    difference = list(difflib.unified_diff(there, here, n=0, lineterm=""))[2:]  # without the names of two files
    changes = [line for line in difference if not line.startswith("@@")]
    raise CheckpointError(
        f"The checkpoint {file} is of another model or optimizer (- there, + here):\n  "
        + few(changes, _SHOWN, "\n  ")
        + "\nNothing was restored. Build model, optimizer and step as they were when it was saved, or use another "
        "folder."
    )


def _lines(described: Sequence[Json]) -> list[str]:
    return [f"{_bare(one['path'])} {one['dtype']} {one['shape']}" for one in described]


def _bare(path: str) -> str:
    """Return a path without Keras's running numbers."""
    return re.sub(r"_\d+", "", path)
