"""Whether workers to whom something happened end as if nothing had."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

import jobs
import numpy as np


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
