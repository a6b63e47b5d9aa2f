"""Kill the training of a large table within its saves, and compare with a run that was never killed.

    python tests/kills/table_kills.py --rows 10000000 --kills 3 [--optimizer adam]

A process of two replicas trains a table of `--rows` x 16 and saves every few steps. Each kill (SIGKILL) comes at a
random moment within a save, once this start has saved one before; then the training is started again. All checkpoints
that it left must be readable, the next start must go on from the newest, and at the end each replica's copy of every
variable and the history must have the bits of the undisturbed run. It says the peak memory of each process (VmHWM),
the seconds of a save until it is on the disk, and the milliseconds of a step. The exit code is 1 when something is
wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

sys.path += [str(Path(__file__).resolve().parents[1] / folder) for folder in ("", "../examples/benchmarks")]

import jobs
import watching
from harness import machine
from table_training import EVERY, STEPS_PER_EPOCH, WIDTH, peak_memory
from watching import newest_of, unfinished_in

TRAINING = Path(__file__).with_name("table_training.py")


class Killed(NamedTuple):
    """What one start came to that was killed."""

    life: watching.Life
    peak: int  # bytes


class Series(NamedTuple):
    """What a series came to: the undisturbed run, those that were killed, and the last one."""

    undisturbed: dict[str, Any]
    saves: list[float]  # seconds of the undisturbed run's
    killed: list[Killed]
    last: dict[str, Any]
    problems: list[str]


def series(rows: int, count: int, optimizer: str, folder: Path, seed: int = 0) -> Series:
    """Kill so often, then let it end; return what happened and all that was wrong."""
    rng, log = random.Random(seed), folder / "log"
    epochs = -(-(count + 2) * EVERY // STEPS_PER_EPOCH)  # each start saves once before it is killed
    options = ["--rows", rows, "--optimizer", optimizer, "--epochs", epochs, "--log", log]
    undisturbed, saves = _to_the_end(folder, "undisturbed", options)
    checkpoints, killed = folder / "killed", []
    for number in range(count):
        killed.append(_killed(folder, checkpoints, options, rng.uniform(0, 0.5) * min(saves)))
        life, peak = killed[-1]
        where = "within a save" if life.unfinished else "after a save"
        steps = f"began at step {life.began}, newest checkpoint {life.newest}"
        print(f"kill {number + 1}, {where}: {steps}, peak memory {_gigabytes(peak)}", flush=True)
    newest = newest_of(checkpoints)
    last, _ = _to_the_end(folder, "killed", options)
    problems = [problem for one in killed for problem in one.life.problems]
    began, _ = watching.progress_of(log)
    problems += [f"the last start went on from step {began}, not {newest}"] if began != newest else []
    problems += [f"{what} differ" for what in ("variables", "history") if last[what] != undisturbed[what]]
    return Series(undisturbed, saves, killed, last, problems)


def _to_the_end(folder: Path, name: str, options: list[object]) -> tuple[dict[str, Any], list[float]]:
    """Train until the end; return the result and the seconds of each save."""
    out, checkpoints, saves, begin = folder / f"{name}.json", folder / name, [], None
    (folder / "log").write_text("")
    command = (sys.executable, TRAINING, *options, "--out", out, "--folder", checkpoints)
    with jobs.process(folder, *command) as job:
        while job.process.poll() is None:
            is_saving = checkpoints.is_dir() and bool(unfinished_in(checkpoints))
            if is_saving and begin is None:
                begin = time.monotonic()
            elif not is_saving and begin is not None:
                saves.append(time.monotonic() - begin)
                begin = None
            time.sleep(0.001)
        assert job.process.returncode == 0, job.text[-4000:]
    return json.loads(out.read_text()), saves


def _killed(folder: Path, checkpoints: Path, options: list[object], delay: float) -> Killed:
    """Start the training and kill it so many seconds after its second save has begun."""
    (folder / "log").write_text("")
    newest, torn = newest_of(checkpoints), unfinished_in(checkpoints) if checkpoints.is_dir() else set()
    command = (sys.executable, TRAINING, *options, "--out", folder / "none", "--folder", checkpoints)
    with jobs.process(folder, *command) as job:
        jobs.until(lambda: newest_of(checkpoints) > newest, "a save", by=job.process, every=0.001)
        jobs.until(lambda: unfinished_in(checkpoints) - torn, "another save", by=job.process, every=0.0005)
        time.sleep(delay)
        peak = peak_memory(job.process.pid)
        os.kill(job.process.pid, signal.SIGKILL)
        job.process.wait(jobs.LIMIT)
    return Killed(watching.inspected(newest, torn, checkpoints, folder / "log"), peak)


def _gigabytes(size: float) -> str:
    return f"{size / 1e9:.2f} GB"


def main() -> int:
    """Run a series and print what it came to; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000, help=f"of the table, which has {WIDTH} columns")
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--optimizer", choices=["adagrad", "adam"], default="adagrad")
    parser.add_argument("--seed", type=int, default=0, help="of the moments of the kills")
    options = parser.parse_args()
    started = time.monotonic()
    print(machine.in_a_line(machine.about()), flush=True)
    with tempfile.TemporaryDirectory(prefix="kills-") as folder:
        one = series(options.rows, options.kills, options.optimizer, Path(folder), options.seed)
    saves, steps = one.saves, [one.undisturbed["step_ms"], one.last["step_ms"]]
    peaks = [_gigabytes(run["peak"]) for run in (one.undisturbed, one.last)]
    print(
        f"{options.rows:,} x {WIDTH}, {options.optimizer}: peak memory undisturbed {peaks[0]}, after the last kill "
        f"{peaks[1]}; a save takes {statistics.median(saves):.2f} s ({min(saves):.2f} to {max(saves):.2f}, "
        f"n = {len(saves)}), a step {steps[0]:.1f} and {steps[1]:.1f} ms (medians of these two processes)"
    )
    torn = sum(killed.life.unfinished for killed in one.killed)
    print(
        f"{len(one.killed)} kills ({torn} within a save), {time.monotonic() - started:.0f} s: "
        + ("; ".join(one.problems) or "variables and history equal the undisturbed run's, bit for bit")
    )
    return 1 if one.problems else 0


if __name__ == "__main__":
    sys.exit(main())
