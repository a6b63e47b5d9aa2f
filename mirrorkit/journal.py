"""The journal of a job whose number of workers may change: what its training writes, and the launcher reads."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import NamedTuple

JOURNAL = "MIRRORKIT_JOURNAL"  # the environment variable with its path; the launcher sets it
BEGAN, RESTORED, STEPS = "began", "restored", "steps"


class Line(NamedTuple):
    """One of a journal: a fit began, was restored, or has made steps."""

    time: float  # seconds since the epoch
    what: str
    steps: int  # done so far


def write(path: str, what: str, steps: int) -> None:
    """Add a line; on a full disk the training goes on without."""
    with contextlib.suppress(OSError), open(path, "a") as file:
        file.write(f"{time.time():.3f} {what} {steps}\n")


def read(path: Path) -> list[Line]:
    """Return the whole lines; none where no training has begun."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        return []
    whole = text[: text.rfind("\n") + 1].splitlines()
    return [Line(float(moment), what, int(steps)) for moment, what, steps in map(str.split, whole)]
