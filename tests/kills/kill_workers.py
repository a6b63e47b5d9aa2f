"""Kill one of two workers again and again (SIGKILL); the launcher ends the other one and starts both again.

    python tests/kills/kill_workers.py --kills 10

Which worker it hits is random, and so are the moments, of the same kinds as in `kill_series.py`. What must hold is the
same too: checkpoints stay readable, every start goes on from the newest, and both workers end with the bits of a run of
two workers without kills and without checkpoints.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import kill_series
from kill_series import KINDS, STEPS_PER_EPOCH, Kill

WORKERS = 2


def run_series(kills: int, epochs: int, folder: Path, seed: int) -> tuple[list[Kill], list[str]]:
    """Train once without kills and once with them; return what happened and what was wrong."""
    rng = random.Random(seed)
    reference, result, checkpoints, log = (folder / name for name in ("reference", "result", "checkpoints", "log"))
    launcher = ("-m", "mirrorkit", "launch", "--workers", WORKERS, "--max-restarts", kills)
    kill_series.start(folder / "reference.txt", "--out", reference, "--epochs", epochs, by=launcher, wait=True)
    checkpoints.mkdir()
    log.write_bytes(b"")
    arguments = ("--out", result, "--folder", checkpoints, "--log", log, "--epochs", epochs)
    job = kill_series.start(folder / "lives.txt", *arguments, by=launcher)
    lives: list[Kill] = []
    try:
        for number in range(kills):
            newest, unfinished = kill_series.newest_of(checkpoints), kill_series.unfinished_in(checkpoints)
            kind, worker = KINDS[number % len(KINDS)], rng.randrange(WORKERS)
            target = kill_series.next_target(newest, epochs * STEPS_PER_EPOCH, kills - number, rng)
            pids = _started(job, log)
            kill_series.wait_for(kind, job, log, checkpoints, target, rng)
            os.kill(pids[worker], signal.SIGKILL)
            kill_series.until(lambda pids=pids: not any(Path(f"/proc/{pid}").exists() for pid in pids), job)
            life = kill_series.inspected(f"{kind} of {worker}", newest, unfinished, checkpoints, log)
            lives.append(life)
            log.write_bytes(b"")  # the next start takes seconds to its first line
            print(kill_series.row_of(number + 1, life), flush=True)
        newest = kill_series.newest_of(checkpoints)
        if job.wait(2 * kill_series.LIMIT):
            raise RuntimeError(f"The training failed:\n{(folder / 'lives.txt').read_text()[-3000:]}")
    finally:
        job.kill()
        job.wait()
    began, _ = kill_series.progress_of(log)
    problems = [] if began == newest else [f"the last start went on from {began}, the newest checkpoint was {newest}"]
    for worker in range(WORKERS):
        problems += kill_series.differences(Path(f"{reference}0.npz"), Path(f"{result}{worker}.npz"))
    return lives, problems


def _started(job: subprocess.Popen[bytes], log: Path) -> list[int]:
    """Wait until every worker has said which process it is; take these notes away."""
    notes = [Path(f"{log}.pid{worker}") for worker in range(WORKERS)]
    kill_series.until(lambda: all(note.exists() and note.read_text() for note in notes), job)
    pids = [int(note.read_text()) for note in notes]
    for note in notes:
        note.unlink()
    return pids


if __name__ == "__main__":
    sys.exit(kill_series.main(run_series))
