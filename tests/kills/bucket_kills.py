"""Kill workers whose checkpoints go to an S3 server behind a bad network, and compare with a run that was never killed.

    python tests/kills/bucket_kills.py --kills 20

Half of the kills come while an object is uploaded, the others at a random step; each kills one of two workers, ends
what is left and starts both again. Connections break, answers are 503, and uploads are slow. After each kill all
checkpoints that a reader finds are read. The exit code is 1 when something is wrong.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

sys.path.append(str(Path(__file__).resolve().parents[1]))  # where jobs.py and object_store.py are

import jobs
import watching
from object_store import Network, store

from mirrorkit.train.checkpoints.bucket import Bucket

TRAINING = Path(__file__).with_name("killed_training.py")
ADDRESS = "s3://bucket/run"


class Killed(NamedTuple):
    """What a life came to."""

    within_upload: bool
    reached: int  # steps
    newest: int  # steps of the newest checkpoint
    problems: list[str]


def series(count: int, epochs: int, folder: Path, network: Network, seed: int = 0) -> tuple[list[Killed], list[str]]:
    """Kill so often; return what happened, and what was wrong with the end."""
    rng, log = random.Random(seed), folder / "log"
    jobs.finished(folder, TRAINING, "--out", folder / "unbroken", "--epochs", epochs)
    steps, lives = epochs * watching.STEPS_PER_EPOCH, []
    command = [*jobs.LAUNCH, "--workers", 2, TRAINING, "--folder", ADDRESS, "--log", log]
    command += ["--out", folder / "killed", "--epochs", epochs]
    for number in range(count):
        log.write_text("")
        target = min(_newest() + rng.randint(2, max(3, 2 * steps // count)), steps - 2)
        with jobs.process(folder, *command, **network.environment) as job:
            jobs.until(lambda: watching.progress_of(log)[0] is not None, "the first step", by=job.process)
            if number % 2:
                jobs.until(lambda: watching.progress_of(log)[1] >= target, "the step", by=job.process)  # noqa: B023
            else:
                before = network.uploads
                jobs.until(lambda: network.uploads > before, "an upload", by=job.process, every=0.001)  # noqa: B023
                time.sleep(rng.uniform(0, 50 * network.delay))
            # the chief uploads
            os.kill(jobs.pid_of(folder, f"worker {0 if number % 2 == 0 else rng.randrange(2)}"), signal.SIGKILL)
            job.process.wait(jobs.LIMIT)
        lives.append(Killed(number % 2 == 0, watching.progress_of(log)[1], _newest(), _unreadable()))
        print(*lives[-1], f"faults so far {network.faults}", flush=True)
    with jobs.process(folder, *command, **network.environment) as job:
        jobs.until(lambda: job.process.poll() is not None, "the end")
        problems = [] if job.process.returncode == 0 else [job.text[-4000:]]
    for worker in (0, 1):
        pair = (folder / f"{end}{worker}.npz" for end in ("killed", "unbroken"))
        problems += [f"worker {worker}: {one}" for one in watching.differences(*pair)]
    return lives, problems


def _newest() -> int:
    found = Bucket(ADDRESS).find()
    return int(found[0].rpartition("step-")[2].removesuffix(".json")) if found else 0


def _unreadable() -> list[str]:
    problems, bucket = [], Bucket(ADDRESS)
    for found in bucket.find():
        try:
            bucket.read(found)
        except Exception as error:
            problems.append(f"{found}: {error}")
    return problems


def main() -> int:
    """Run a series and print what it came to; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=8, help=f"of {watching.STEPS_PER_EPOCH} steps each")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    started = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="kills-") as folder,
        store(Path(folder), broken=0.1, busy=0.1, delay=0.005) as network,
    ):
        lives, problems = series(options.kills, options.epochs, Path(folder), network, options.seed)
        faults = network.faults
    problems += [problem for life in lives for problem in life.problems]
    print(
        f"{len(lives)} kills ({sum(life.within_upload for life in lives)} within an upload), {faults} faults of the "
        f"network, {time.monotonic() - started:.0f} s: "
        + ("; ".join(problems) or "final variables and history equal the unbroken run's, bit for bit")
    )
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
