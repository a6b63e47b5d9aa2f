"""Faults of jobs with parameter servers: every step is counted once, whatever happens."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import jobs
from jobs import SERVERS, Process
from judged import Row, true_ones


def ps_killed(folder: Path) -> Row:
    """The chief names it; all are started again by hand."""
    arguments = (SERVERS, folder / "saved", 4, 0.2)
    with jobs.started(folder, *arguments, ps=1) as tasks:
        tasks["chief"].wait_for("epoch 1 ")
        killed = jobs.send(tasks["ps 0"].process.pid, signal.SIGKILL)
        codes = {name: task.end() for name, task in tasks.items()}
    moment, seen = tasks["chief"].line("ClusterError: ps 0 ")
    wrong = {
        f"exit codes {codes}": codes != {"chief": 1, "worker 0": 0, "worker 1": 0, "ps 0": -9},
        "it took longer than 30 s": moment - killed > 30,
    }
    with jobs.started(folder, *arguments, ps=1) as again:
        again["chief"].end()
    return Row("ps killed", seen, moment - killed, true_ones(wrong) + _miscounted(again["chief"], 160, resumed=40))


def worker_of_ps_killed(folder: Path) -> Row:
    """The others go on, and the launcher brings it back."""
    arguments = ("--workers", 2, "--ps", 1, "--max-restarts", 1, SERVERS, folder / "saved", 6, 0.3)
    with jobs.launched(folder, *arguments) as job:
        job.wait_for("epoch 1 ")
        killed = jobs.send(jobs.pid_of(folder, "worker 1"), signal.SIGKILL)
        jobs.until(lambda: jobs.pid_of(folder, "worker 1"), "its next start")
        code = job.end()
    moment, seen = job.line(r"launch \| worker 1 ended")
    wrong = {f"exit code {code}": code != 0, "all started again": job.says(r"restart 1 of 1$")}
    return Row("worker of parameter servers killed", seen, moment - killed, true_ones(wrong) + _miscounted(job, 240))


def worker_of_ps_stopped(folder: Path) -> Row:
    """The call in which it has a piece waits for it."""
    with jobs.launched(folder, "--workers", 2, "--ps", 1, SERVERS, folder / "saved", 4, 0.1) as job:
        job.wait_for("epoch 1 ")
        pid = jobs.pid_of(folder, "worker 1")
        stopped = jobs.send(pid, signal.SIGSTOP)
        time.sleep(20)
        jobs.send(pid, signal.SIGCONT)
        code = job.end()
    wrong = {f"exit code {code}": code != 0, "a worker was lost": job.says("ended with")}
    moment, _ = job.line("epoch 2 ")
    seen = "nothing: the epoch takes longer"
    return Row(
        "worker of parameter servers stopped for 20 s", seen, moment - stopped, true_ones(wrong) + _miscounted(job, 160)
    )


def _miscounted(chief: Process, steps: int, *, resumed: int | None = None) -> list[str]:
    """Compare the steps that the loop counted, and the optimizer's updates, with those asked for."""
    _, line = chief.line(r"done \d+ \d+")
    counted, updates = (int(number) for number in line.split()[1:3])
    wrong = {
        f"{counted} steps instead of {steps}": counted != steps,
        # the piece that a worker was at when it died may have been made twice
        f"{updates} updates for {steps} steps": not steps <= updates <= steps + (0 if resumed else 10),
        "it did not go on from a checkpoint": resumed is not None and not chief.says(r"at step [1-9]"),
    }
    return true_ones(wrong)
