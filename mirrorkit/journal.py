"""The journal of a job whose number of workers may change: what its training writes, and the launcher reads."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import NamedTuple

JOURNAL = "MIRRORKIT_JOURNAL"  # the environment variable with its path; the launcher sets it
BEGAN, RESTORED, STEPS, SAVED = "began", "restored", "steps", "saved"


class Line(NamedTuple):
    """One of a journal: a fit began, was restored, has made steps, or has saved them."""

    time: float  # seconds since the epoch
    what: str
    steps: int  # done so far


def write(path: str, what: str, steps: int) -> None:
    """Add a line; on a full disk the training goes on without."""
    with contextlib.suppress(OSError), open(path, "a") as file:
        file.write(f"{time.time():.3f} {what} {steps}\n")


def saved(steps: int) -> None:
    """Add that a checkpoint of so many steps is there, where the job keeps a journal."""
    if path := os.environ.get(JOURNAL):
        write(path, SAVED, steps)


def read(path: Path) -> list[Line]:
    """Return the whole lines; none where no training has begun."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        return []
    whole = text[: text.rfind("\n") + 1].splitlines()
    return [Line(float(moment), what, int(steps)) for moment, what, steps in map(str.split, whole)]
