"""What may happen to several workers: it happens to a real job, which must end as if nothing had."""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import jobs
from jobs import WORKERS
from judged import Row, changed, end_again, happened, true_ones

SEED = 0
STEPS_PER_EPOCH, STEPS = 10, 80  # of the workers' training
ENDS_OF_CALLS = (3, 6, 9, 10)  # in an epoch
AT_MOST = 30.0  # seconds until the others have named a worker that is lost
NAMED = r"ClusterError: worker {} \(127\.0\.0\.1:\d+\) {}, and the other workers cannot go on without it"


def worker_killed(folder: Path) -> Row:
    """The launcher starts all again."""
    return _launched_again(folder, "kill", 1, "worker killed", r"launch \| worker 1 ended")


def chief_killed(folder: Path) -> Row:
    """Worker 0 is the chief where there is no other."""
    return _launched_again(folder, "kill", 0, "chief (worker 0) killed", r"launch \| worker 0 ended")


def worker_stopped(folder: Path) -> Row:
    """SIGSTOP; after 20 s it would go on if it were still there."""
    return _launched_again(folder, "stop", 1, "worker stopped for 20 s", NAMED.format(1, "has stopped answering"))


def worker_killed_without_launcher(folder: Path) -> Row:
    """The others name it and end; all are started again by hand."""
    return _started_again(folder, "kill", 1, "worker killed", NAMED.format(1, "is gone"))


def chief_killed_without_launcher(folder: Path) -> Row:
    """As with any other worker."""
    return _started_again(folder, "kill", 0, "chief (worker 0) killed", NAMED.format(0, "is gone"))


def sigterm_to_one_worker(folder: Path) -> Row:
    """All save at the same step, leave with 143, and go on when they are started again."""
    return _started_again(folder, "term", 1, "SIGTERM to one worker", "SIGTERM: saved in", codes=[143, 143])


def launcher_killed(folder: Path) -> Row:
    """Nothing is left running."""
    with jobs.launched(folder, "--workers", 2, WORKERS, folder, "--event", "slow", "--step", 6) as job:
        jobs.until((folder / "happened").exists, "the step")
        before = len(jobs.processes(folder))
        killed = jobs.send(job.process.pid, signal.SIGKILL)
        jobs.until(lambda: not jobs.processes(folder), "the end of all processes")
        seconds = time.time() - killed
    wrong = {"nothing ran before": before < 4, "it took longer than 5 s": seconds > 5}
    return Row("launcher killed (SIGKILL)", "nothing: its tasks are ended with it", seconds, true_ones(wrong))


def disk_full(folder: Path) -> Row:
    """A file system that fills up between two saves."""
    saved = folder / "checkpoints"
    event = ("--event", "slow", "--worker", 0, "--step", 10)
    with small_file_system(saved):
        with jobs.launched(folder, "--workers", 2, WORKERS, folder, *event) as job:
            jobs.until((folder / "happened").exists, "the step")
            with contextlib.suppress(OSError), (saved / "other").open("wb", buffering=0) as other:
                full = time.time()
                while True:
                    other.write(bytes(512))
            code = job.end()
        moment, seen = job.line("FileError: ")
        left = sorted(path.name for path in saved.glob("step-*"))
        (saved / "other").unlink()
        wrong = {f"exit code {code}": code != 1, f"left were {left}": not left or left[-1] > "step-0000000010.npz"}
        return Row("disk full while saving", seen, moment - full, true_ones(wrong) + end_again(folder))


def _launched_again(folder: Path, event: str, worker: int, fault: str, seen: str) -> Row:
    """A disturbed run of the launcher, which starts all again once."""
    step = random.Random(f"{SEED} {fault}").randrange(10, STEPS - 10)
    options = ("--event", event, "--worker", worker, "--step", step)
    with jobs.launched(folder, "--workers", 2, "--max-restarts", 1, WORKERS, folder, *options) as job:
        if event == "stop":
            jobs.until((folder / "happened").exists, "the step")
            pid = jobs.pid_of(folder, f"worker {worker}")
            time.sleep(20)
            with contextlib.suppress(ProcessLookupError):
                jobs.send(pid, signal.SIGCONT)
        code = job.end()
    moment, line = job.line(seen)
    told = "; ".join(line for _, line in job.lines if line.startswith("launch |") or "ClusterError:" in line)
    wrong = {f"exit code {code}: {told}": code != 0, "no restart": not job.says(r"^launch \| restart 1 of 1$")}
    fault = f"{fault} at step {step}; `launch --max-restarts 1`"
    return Row(fault, line, moment - happened(folder), true_ones(wrong) + changed(folder))


def _started_again(
    folder: Path, event: str, worker: int, fault: str, seen: str, *, codes: list[int] | None = None
) -> Row:
    """A disturbed run of tasks without a launcher; then all are started again."""
    step = random.Random(f"{SEED} alone {fault}").randrange(10, STEPS - 10)
    expected = codes or [1 if i != worker else -signal.SIGKILL for i in range(2)]
    options = ("--event", event, "--worker", worker, "--step", step)
    with jobs.started(folder, WORKERS, folder, *options) as tasks:
        found = [tasks[f"worker {i}"].end() for i in range(2)]
    moment, line = tasks[f"worker {1 - worker}"].line(seen)
    seconds = moment - happened(folder)
    wrong = {f"exit codes {found}": found != expected, f"it took longer than {AT_MOST:g} s": seconds > AT_MOST}
    if codes:  # all have saved, at the end of the call in which the signal came
        newest = max(path.name for path in (folder / "checkpoints").iterdir())
        first = (step - 1) // STEPS_PER_EPOCH * STEPS_PER_EPOCH
        saved = min(first + end for end in ENDS_OF_CALLS if first + end >= step)
        wrong[f"{newest} is not of step {saved}"] = newest != f"step-{saved:010d}.npz"
        wrong["not all have saved"] = not all(task.says(seen) for task in tasks.values())
    fault = f"{fault} at step {step}; no launcher"
    return Row(fault, line, seconds, true_ones(wrong) + end_again(folder))


@contextlib.contextmanager
def small_file_system(folder: Path, size: str = "256k") -> Iterator[None]:
    """A file system in memory; needs root."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)
