"""What a step's variables are, as a checkpoint says it, and whether another step's fit."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from mirrorkit._types import Json, Variable
from mirrorkit.errors import CheckpointError
from mirrorkit.train.step.sharded_slots import WholeSlot
from mirrorkit.variables import path

_SHOWN = 10  # differences in an error message


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
