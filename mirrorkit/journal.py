"""The journal of a job whose number of workers may change: what its training writes, and the launcher reads."""

from __future__ import annotations

import contextlib
import os
import re
import time
from typing import NamedTuple

JOURNAL = "MIRRORKIT_JOURNAL"  # the environment variable with its path; the launcher sets it
BEGAN, RESTORED, STEPS, SAVED = "began", "restored", "steps", "saved"

_LINE = re.compile(r"\d+\.\d{3} ([a-z]+) (\d+)")


class Line(NamedTuple):
    """One of a journal: a fit began, was restored, has made steps, or has saved them."""

    what: str
    steps: int  # done so far


def write(path: str, what: str, steps: int) -> None:
    """Add a line to the launcher's pipe, or to a file; where that fails or would wait, the training goes on without."""

    def opener(path: str, flags: int) -> int:
        return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))

    with contextlib.suppress(OSError), open(path, "a", opener=opener) as file:
        file.write(f"{time.time():.3f} {what} {steps}\n")


def saved(steps: int) -> None:
    """Add that a checkpoint of so many steps is there, where the job keeps a journal."""
    if path := os.environ.get(JOURNAL):
        write(path, SAVED, steps)


def parsed(text: str) -> Line | None:
    """Return a line of the journal; None for any other, such as one that was cut off."""
    found = _LINE.fullmatch(text)
    return Line(found[1], int(found[2])) if found else None
