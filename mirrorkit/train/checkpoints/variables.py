"""What a step's variables are, as a checkpoint says it, and whether another step's fit."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from mirrorkit._types import Json, Variable
from mirrorkit.errors import CheckpointError
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
    places = {key: place for place, key in enumerate(_numbered(saved))}
    return [places[key] for key in _numbered(present) if key in places]


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
    more = [f"and {len(changes) - _SHOWN} more"] if len(changes) > _SHOWN else []
    raise CheckpointError(
        f"The checkpoint {file} is of another model or optimizer (- there, + here):\n  "
        + "\n  ".join(changes[:_SHOWN] + more)
        + "\nNothing was restored. Build model, optimizer and step as they were when it was saved, or use another "
        "folder."
    )


def _lines(described: Sequence[Json]) -> list[str]:
    return [f"{_bare(one['path'])} {one['dtype']} {one['shape']}" for one in described]


def _bare(path: str) -> str:
    """Return a path without Keras's running numbers."""
    return re.sub(r"_\d+", "", path)


def _numbered(described: Sequence[Json]) -> dict[tuple[str, int], Json]:
    """Return the descriptions by path without Keras's running numbers; a count tells equal paths apart."""
    seen: Counter[str] = Counter()
    numbered = {}
    for one in described:
        bare = _bare(one["path"])
        numbered[bare, seen[bare]] = one
        seen[bare] += 1
    return numbered
