"""Kill a training run again and again (SIGKILL), start it again each time, compare with one that was never killed.

    python tests/kills/kill_series.py --kills 20 [--with layout|shard_optimizer]

The kills come at random moments of three kinds, in turn: while the program starts (importing, restoring, compiling),
at a random step, and within a save (as soon as its temporary file is seen). After every kill all checkpoints must be
readable, and the next start must go on from the newest. At the end all variables (weights, statistics, seeds, optimizer
slots) and the history must have the bits of a run without kills and without checkpoints. Exit code 1 when one of this
is not so.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
TRAINING = HERE / "killed_training.py"
STEPS_PER_EPOCH = 20  # of that training
KINDS = ("a step", "within a save", "the start")
LIMIT = 300.0  # seconds in which a start must come to its first step, or to the kill


@dataclass
class Kill:
    """What one life of the training came to."""

    kind: str
    began: int | None  # steps done when it began to train; None: it was killed before
    reached: int
    newest: int  # steps of the newest checkpoint after the kill, 0 for none
    unfinished: bool  # whether the kill left a half-written file
    problems: list[str]


def run_series(
    kills: int, epochs: int, folder: Path, seed: int, training: Sequence[str] = ()
) -> tuple[list[Kill], list[str]]:
    """Train once without kills and once with them; return what happened and what was wrong.

    `training` are further arguments of the training.
    """
    rng = random.Random(seed)
    reference, result = folder / "reference.npz", folder / "result.npz"
    start(folder / "reference.txt", "--out", reference, "--epochs", epochs, *training, wait=True)
    checkpoints, log = folder / "checkpoints", folder / "log.txt"
    checkpoints.mkdir()
    arguments = ("--out", result, "--folder", checkpoints, "--log", log, "--epochs", epochs, *training)
    lives: list[Kill] = []
    for number in range(kills):
        log.write_bytes(b"")
        newest, unfinished = newest_of(checkpoints), unfinished_in(checkpoints)
        kind = KINDS[number % len(KINDS)]
        target = next_target(newest, epochs * STEPS_PER_EPOCH, kills - number, rng)
        process = start(folder / f"life{number}.txt", *arguments)
        try:
            wait_for(kind, process, log, checkpoints, target, rng)
        finally:
            process.kill()
            process.wait()
        lives.append(inspected(kind, newest, unfinished, checkpoints, log))
        print(row_of(number + 1, lives[-1]), flush=True)
    log.write_bytes(b"")
    newest = newest_of(checkpoints)
    start(folder / "last.txt", *arguments, wait=True)
    began, _ = progress_of(log)
    problems = [] if began == newest else [f"the last start went on from {began}, the newest checkpoint was {newest}"]
    return lives, problems + differences(reference, result)


def next_target(done: int, steps: int, kills: int, rng: random.Random) -> int:
    """At which step to kill, so that all the kills still to come find something left to kill."""
    return done + rng.randrange(1, max(2, int(1.6 * (steps - done) / (kills + 1))))


def start(
    output: Path,
    *arguments: object,
    wait: bool = False,
    by: Sequence[object] = (),
    training: Path = TRAINING,
    **variables: str,
) -> subprocess.Popen[bytes]:
    """Start the training, `by` the launcher perhaps; what it says goes into a file."""
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", **variables}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(HERE.parents[1]), os.environ.get("PYTHONPATH")]))
    with output.open("wb") as file:
        command = [sys.executable, *map(str, by), str(training), *map(str, arguments)]
        process = subprocess.Popen(command, env=environment, stdout=file, stderr=subprocess.STDOUT)
    if wait:
        try:
            process.wait(2 * LIMIT)
        finally:
            process.kill()
        if process.returncode:
            raise RuntimeError(f"The training failed:\n{output.read_text()[-3000:]}")
    return process


def wait_for(
    kind: str, process: subprocess.Popen[bytes], log: Path, checkpoints: Path, target: int, rng: random.Random
) -> None:
    """Wait for the moment to kill."""
    if kind == "the start":
        moment = time.monotonic() + rng.uniform(0.5, 12.0)
        until(lambda: time.monotonic() > moment or progress_of(log)[0] is not None, process)
        return
    until(lambda: progress_of(log)[1] >= target, process)
    if kind == "within a save":
        until(lambda: any(name.endswith(".tmp") for name in os.listdir(checkpoints)), process)
    else:
        time.sleep(rng.uniform(0, 0.05))


def until(condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    limit = time.monotonic() + LIMIT
    while not condition():
        if process.poll() is not None:
            raise RuntimeError(f"The training ended before its kill, with exit code {process.returncode}.")
        if time.monotonic() > limit:
            raise RuntimeError(f"Nothing to kill came within {LIMIT:g} s.")
        time.sleep(0.001)


def inspected(kind: str, newest_before: int, unfinished_before: set[str], checkpoints: Path, log: Path) -> Kill:
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
    return Kill(kind, began, max(reached, 0), newest_of(checkpoints), torn, problems)


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
    with np.load(reference) as one, np.load(result) as other:
        if one.files != other.files:
            return ["the two runs have different variables"]
        names = [name for name in one.files if one[name].tobytes() != other[name].tobytes()]
    return [f"bits differ in: {', '.join(names)}"] if names else []


_COLUMNS = "{:>4}  {:<18} {:>9} {:>9} {:>10}  {:<12} {}"


def row_of(number: int, kill: Kill) -> str:
    began = "-" if kill.began is None else kill.began
    half = "half a file" if kill.unfinished else ""
    return _COLUMNS.format(
        number, kill.kind, began, kill.reached, kill.newest, half, "; ".join(kill.problems) or "all readable"
    )


Series = Callable[..., tuple[list[Kill], list[str]]]


def main(series: Series = run_series) -> int:
    """Run a series and print its table; returns the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=20, help=f"of {STEPS_PER_EPOCH} steps each")
    parser.add_argument("--seed", type=int, default=0, help="of the moments of the kills")
    if series is run_series:
        parser.add_argument("--with", dest="how", choices=["layout", "shard_optimizer"], help="how to train")
    options = parser.parse_args()
    further = (["--with", options.how],) if vars(options).get("how") else ()
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kills-") as folder:
        print(_COLUMNS.format("kill", "at", "began at", "reached", "newest", "it left", "checkpoints"), flush=True)
        lives, problems = series(options.kills, options.epochs, Path(folder), options.seed, *further)
    problems += [problem for kill in lives for problem in kill.problems]
    torn = sum(kill.unfinished for kill in lives)
    print(
        f"{len(lives)} kills ({torn} within a save), {options.epochs * STEPS_PER_EPOCH} steps, "
        f"{time.monotonic() - started:.0f} s: "
        + ("; ".join(problems) if problems else "final variables and history equal the unbroken run's, bit for bit")
    )
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
