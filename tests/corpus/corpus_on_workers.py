"""The corpus trained by two workers: real processes on this machine, in one job.

Run by the table and the tests: python -m mirrorkit launch --workers 2 tests/corpus/corpus_on_workers.py FOLDER NAME ...
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from corpus import ENTRIES, Found, run
from on_workers import load, run_job, save, stacked

import mirrorkit as mk

WORKERS = 2
_ERROR = "error"  # in place of an outcome


def found_on_workers(names: Sequence[str]) -> dict[str, Found]:
    """Train entries on the workers; each value of an outcome is stacked from both workers' own.

    Raises:
        RuntimeError: the job failed; with the end of what it printed.
    """
    with tempfile.TemporaryDirectory() as folder:
        run_job(__file__, [folder, *names], workers=WORKERS, folder=folder)
        each = {name: [load(_file(folder, name, i)) for i in range(WORKERS)] for name in names}
    return {name: _of_all(outcomes) for name, outcomes in each.items()}


def _of_all(outcomes: list[dict[str, np.ndarray]]) -> Found:
    errors = [str(outcome[_ERROR]) for outcome in outcomes if _ERROR in outcome]
    if not errors:
        return stacked(outcomes)
    if len(errors) < WORKERS:
        return f"one worker trained, and the other did not: {errors[0]}"
    return errors[0]


def _file(folder: str, name: str, worker: int) -> Path:
    return Path(folder) / f"entry{list(ENTRIES).index(name)}-worker{worker}.npz"


def main() -> None:
    """Be one of the workers."""
    folder, names = sys.argv[1], sys.argv[2:]
    warnings.filterwarnings("ignore", message="A global batch of")
    strategy = mk.strategy.create("multi_worker", start_timeout=120)
    for name in names:
        found = run(ENTRIES[name], strategy)
        file = _file(folder, name, mk.strategy.worker_index(strategy))
        save(file, {_ERROR: np.array(found)} if isinstance(found, str) else found)


if __name__ == "__main__":
    main()
