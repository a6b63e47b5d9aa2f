"""Cases trained by workers: real processes on this machine. One job trains all cases, since it takes long to start.

Run by the table and the tests: python -m mirrorkit launch --workers 2 tests/equivalence/on_workers.py FOLDER NAME ...
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
from cases import CASES
from cells import Outcome, train

import mirrorkit as mk

ROOT = Path(mk.__file__).parents[1]


def train_on_workers(names: Sequence[str], workers: int) -> dict[str, Outcome]:
    """Train cases on so many workers; each value of an outcome is stacked from all workers' own.

    Raises:
        RuntimeError: the job failed; with the end of what it printed.
    """
    with tempfile.TemporaryDirectory() as folder:
        run_job(__file__, [folder, *names], workers=workers, folder=folder)
        return {name: stacked([load(_file(Path(folder), name, i)) for i in range(workers)]) for name in names}


def run_job(script: str, arguments: Sequence[str], *, workers: int, folder: str) -> None:
    """Run a script as so many workers, with a folder for their temporary files.

    Raises:
        RuntimeError: the job failed; with the end of what it printed.
    """
    command = [sys.executable, "-m", "mirrorkit", "launch", "--workers", str(workers), "--devices-per-worker", "cpu"]
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [*command, script, *arguments],
        env={**os.environ, "PYTHONPATH": path, "TMPDIR": folder},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
    )
    if done.returncode:
        raise RuntimeError(f"exit code {done.returncode} of {command}:\n{done.stdout[-2000:]}{done.stderr[-5000:]}")


def disagreeing(found: Outcome) -> list[str]:
    """What does not have the same bits on all workers, of an outcome of `train_on_workers`."""
    return [name for name, value in found.items() if any(copy.tobytes() != value[0].tobytes() for copy in value)]


def stacked(outcomes: Sequence[Outcome]) -> Outcome:
    """The outcome of all workers."""
    first, *others = outcomes
    assert all(other.keys() == first.keys() for other in others)
    return {name: np.stack([outcome[name] for outcome in outcomes]) for name in first}


def save(file: Path, outcome: Outcome) -> None:
    """Write a worker's outcome; a file in an archive may not be named like a folder."""
    np.savez(file, **{key.replace("/", "|"): value for key, value in outcome.items()})


def load(file: Path) -> Outcome:
    """Read what `save` wrote."""
    with np.load(file) as values:
        return {key.replace("|", "/"): values[key] for key in values.files}


def _file(folder: Path, name: str, worker: int) -> Path:
    return folder / f"case{list(CASES).index(name)}-worker{worker}.npz"


def main() -> None:
    """Be one of the workers."""
    folder, names = Path(sys.argv[1]), sys.argv[2:]
    warnings.filterwarnings("ignore", message="A global batch of")
    strategy = mk.strategy.create("multi_worker", start_timeout=120)
    for name in names:
        save(_file(folder, name, mk.strategy.worker_index(strategy)), train(CASES[name], strategy))


if __name__ == "__main__":
    main()
