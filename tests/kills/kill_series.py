"""Kill a training run again and again (SIGKILL), start it again each time, compare with one that was never killed.

    python tests/kills/kill_series.py --kills 20 [--with layout|shard_optimizer]
    python tests/kills/kill_series.py --kills 10 --workers

The kills come at random moments of three kinds, in turn: at a random step, within a save (as soon as its temporary file
is seen), and while the program starts (importing, restoring, compiling). With `--workers` one of two workers is killed,
and the launcher ends the other one and starts both again. It is a soak of kills alone: `soak.py` says what must hold.
The exit code is 1 when something is wrong.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import soak
from strikes import KILL, SAVE, START, STEP, Strike

MOMENTS = (STEP, SAVE, START)
_COLUMNS = "{:<18} {:>9} {:>9} {:>10}  {:<12} {}"


def kills(part: str, count: int) -> list[Strike]:
    """So many kills of a process, or of a worker, at the three kinds of moments in turn."""
    on = {"process": "the process", "workers": "a worker"}[part]
    return [Strike(on, KILL, MOMENTS[number % len(MOMENTS)]) for number in range(count)]


def series(
    part: str, plan: Sequence[Strike], epochs: int, folder: Path, seed: int = 0, options: Sequence[str] = ()
) -> tuple[list[soak.Struck], list[str]]:
    """Strike a part of the soak; return what happened and all that was wrong. `options` are those of the training."""
    one = soak.Soak(part, plan, epochs, folder, seed, options=options, told=row_of)
    problems = one.run()
    return one.done, [problem for struck in one.done for problem in (*struck.left, *struck.problems)] + problems


def row_of(life: soak.Struck) -> str:
    began, half = "-" if life.began is None else life.began, "half a file" if life.unfinished else ""
    wrong = "; ".join([*life.left, *life.problems])
    return _COLUMNS.format(life.moment, began, life.reached, life.newest, half, wrong or "all readable")


def main() -> int:
    """Run a series and print what it came to; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=20, help=f"of {soak.STEPS_PER_EPOCH} steps each")
    parser.add_argument("--seed", type=int, default=0, help="of the moments of the kills")
    parser.add_argument("--workers", action="store_true", help="kill one of two workers")
    parser.add_argument("--with", dest="how", choices=["layout", "shard_optimizer"], help="how one process trains")
    options = parser.parse_args()
    part, further = "workers" if options.workers else "process", ["--with", options.how] if options.how else []
    plan = kills(part, options.kills)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kills-") as folder:
        print(
            "   kill  " + _COLUMNS.format("at", "began at", "reached", "newest", "it left", "checkpoints"), flush=True
        )
        lives, problems = series(part, plan, options.epochs, Path(folder), options.seed, further)
    torn = sum(life.unfinished for life in lives)
    print(
        f"{len(lives)} kills ({torn} within a save), {options.epochs * soak.STEPS_PER_EPOCH} steps, "
        f"{time.monotonic() - started:.0f} s: "
        + ("; ".join(problems) if problems else "final variables and history equal the unbroken run's, bit for bit")
    )
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
