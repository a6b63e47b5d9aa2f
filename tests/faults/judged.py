"""What came of a fault, and how the result is judged: by the bits of a run to which nothing happened."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import NamedTuple

import jobs
import numpy as np


class Row(NamedTuple):
    """What came of a fault."""

    fault: str
    seen: str  # the line that matters
    seconds: float  # from the fault, or the call that it stops, to that line
    problems: list[str]  # empty where the result is right


def end_again(folder: Path) -> list[str]:
    """Start all again, without anything that happens to them; return what is wrong with the end."""
    with jobs.launched(folder, "--workers", 2, jobs.WORKERS, folder) as job:
        code = job.end()
    return [f"the next start ended with {code}: {job.text[-300:]}"] if code else changed(folder)


def changed(folder: Path) -> list[str]:
    """Return which workers' history or variables have other bits than those of an undisturbed run."""
    ends = [end_of(folder, worker) if (folder / f"end{worker}.npz").exists() else None for worker in range(2)]
    return [f"other bits in worker {worker}" for worker, end in enumerate(ends) if end != undisturbed()]


@functools.cache
def undisturbed() -> bytes:
    """What a run ends with to which nothing happens."""
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        jobs.finished(Path(folder), jobs.WORKERS, folder)
        return end_of(Path(folder), 0)


def end_of(folder: Path, worker: int) -> bytes:
    with np.load(folder / f"end{worker}.npz") as file:
        return b"".join(name.encode() + file[name].tobytes() for name in file.files)


def happened(folder: Path) -> float:
    return float((folder / "happened").read_text())


def true_ones(wrong: dict[str, bool]) -> list[str]:
    return [text for text, is_so in wrong.items() if is_so]
