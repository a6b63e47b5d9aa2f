"""What one sees of a training from outside: how far it is, its checkpoints, its end; and the moments to strike it."""

from __future__ import annotations

import random
import subprocess
import time
import zipfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jobs import until
from strikes import SAVE, START

STEPS_PER_EPOCH = 20  # of killed_training.py


class Life(NamedTuple):
    """What one life of a training came to."""

    began: int | None  # steps done when it began to train; None: it was struck before
    reached: int
    newest: int  # steps of the newest checkpoint after the strike, 0 for none
    unfinished: bool  # whether the strike left a half-written file
    problems: list[str]


def inspected(newest_before: int, unfinished_before: set[str], checkpoints: Path, log: Path) -> Life:
    """What a life came to: all checkpoints are readable, and it went on from the newest."""
    problems = []
    for path in checkpoints.glob("*.npz"):
        try:
            _read(path)
        except FileNotFoundError:  # a training that goes on has removed an old one
            continue
        except Exception as error:
            problems.append(f"{path.name} is unreadable: {type(error).__name__}: {error}")
    began, reached = progress_of(log)
    if began is not None and began != newest_before:
        problems.append(f"it went on from step {began}, the newest checkpoint was {newest_before}")
    torn = bool(unfinished_in(checkpoints) - unfinished_before)
    return Life(began, max(reached, 0), newest_of(checkpoints), torn, problems)


def _read(path: Path) -> None:
    """Read a checkpoint without mirrorkit."""
    with zipfile.ZipFile(path) as archive:
        bad = archive.testzip()
    if bad is not None:
        raise ValueError(f"bad entry {bad}")
    with np.load(path, allow_pickle=False) as file:
        for name in file.files:
            file[name]


def newest_of(checkpoints: Path) -> int:
    return max((int(path.stem.partition("-")[2]) for path in checkpoints.glob("step-*.npz")), default=0)


def unfinished_in(checkpoints: Path) -> set[str]:
    return {path.name for path in checkpoints.glob("*.tmp")}


def progress_of(log: Path) -> tuple[int | None, int]:
    """The steps at which the training began (None: not yet), and those done by now."""
    lines = [line.split() for line in log.read_text().splitlines()]
    begins = [int(value) for word, value in lines if word == "begin"]
    steps = [int(value) for word, value in lines if word == "step"]
    return (begins[0] if begins else None), (steps[-1] if steps else -1)


def differences(reference: Path, result: Path) -> list[str]:
    """What has other bits at the end of two runs."""
    with np.load(reference) as one, np.load(result) as other:
        if one.files != other.files:
            return ["the two runs have different variables"]
        names = [name for name in one.files if one[name].tobytes() != other[name].tobytes()]
    return [f"bits differ in: {', '.join(names)}"] if names else []


def next_target(done: int, steps: int, strikes: int, rng: random.Random) -> int:
    """At which step to strike, so that all the strikes still to come find something left."""
    return done + rng.randrange(1, max(2, int(1.6 * (steps - done) / (strikes + 1))))


def wait_for(moment: str, job: subprocess.Popen, log: Path, target: int, rng: random.Random) -> None:
    """Wait for the moment; within a save, for the step after which it comes."""
    if moment == START:
        at = time.monotonic() + rng.uniform(0.5, 12.0)
        until(lambda: time.monotonic() > at or progress_of(log)[0] is not None, "the start", by=job)
        return
    until(lambda: progress_of(log)[1] >= target, f"step {target}", by=job)
    if moment != SAVE:
        time.sleep(rng.uniform(0, 0.05))
