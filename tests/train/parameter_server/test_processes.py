"""Parameter servers as real processes: they start together, end together, and bear what befalls them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import mirrorkit as mk
from mirrorkit.cluster import unreachable
from mirrorkit.errors import ClusterError
from mirrorkit.launch import layout

ROOT = Path(mk.__file__).parents[1]
SCRIPT = Path(__file__).with_name("training.py")
STEPS = 40  # of an epoch


class Job:
    """The tasks of a job, each a process with a log file."""

    def __init__(self, folder: Path, *command: str) -> None:
        self.folder = folder
        self._command = [sys.executable, *command]
        self._tasks = layout.clusters(2, ps=1)
        self.processes: dict[str, subprocess.Popen] = {}

    def start(self, *names: str) -> None:
        for name in names or self._tasks:
            environment = {**os.environ, "TF_CONFIG": self._tasks[name].to_tf_config(), "PYTHONPATH": str(ROOT)}
            with open(self.folder / f"{name}.log", "ab") as log:
                self.processes[name] = subprocess.Popen(self._command, env=environment, stdout=log, stderr=log)

    def send(self, name: str, number: int) -> None:
        self.processes[name].send_signal(number)

    def log(self, name: str = "chief") -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def wait_for(self, text: str, timeout: float = 150) -> None:
        deadline = time.monotonic() + timeout
        while text not in self.log():
            assert time.monotonic() < deadline, f"{text!r} did not come: {self.log()[-3000:]}"
            assert self.processes["chief"].poll() is None, self.log()[-3000:]
            time.sleep(0.1)

    def wait_for_server(self, name: str, timeout: float = 90) -> None:
        deadline, address = time.monotonic() + timeout, self._tasks[name].addresses[name]
        while unreachable({name: address}):
            assert time.monotonic() < deadline, self.log(name)[-3000:]
            time.sleep(0.1)

    def epochs(self) -> int:
        """The last epoch that has begun."""
        return int(re.findall(r"^epoch (\d+) ", self.log(), re.MULTILINE)[-1])

    def end_of(self, *names: str, timeout: float = 60) -> list[int]:
        return [self.processes[name].wait(timeout) for name in names]

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()


@pytest.fixture
def job(tmp_path):
    job = Job(tmp_path, str(SCRIPT), str(tmp_path / "checkpoints"))
    yield job
    job.close()


def steps_and_updates(log: str) -> list[tuple[int, int]]:
    """Steps that the loop counted, and updates that the optimizer counted, at the beginning of each epoch."""
    found = re.findall(r"^epoch (\d+) at step (\d+) updates (\d+)$", log, re.MULTILINE)
    assert found, log[-3000:]
    assert all(int(step) == int(epoch) * STEPS for epoch, step, _ in found[1:]), found
    return [(int(step), int(updates)) for _, step, updates in found]


@pytest.mark.slow
def test_a_job_bears_what_befalls_its_tasks(job):
    job.start()
    job.wait_for("epoch 1 ")
    job.send("worker 0", signal.SIGSTOP)
    time.sleep(20)
    job.send("worker 0", signal.SIGCONT)
    job.wait_for("epoch 3 ")
    assert all(steps == updates for steps, updates in steps_and_updates(job.log())), "a worker that stood still"

    job.send("worker 1", signal.SIGKILL)
    job.wait_for("epoch 5 ")  # without it
    job.start("worker 1")
    job.wait_for_server("worker 1")
    again = job.epochs()
    job.wait_for(f"epoch {again + 2} ")  # with it
    steps, updates = steps_and_updates(job.log())[-1]
    assert steps <= updates <= steps + 10, "only the piece that the worker was at may have been made twice"

    job.send("ps 0", signal.SIGKILL)
    assert job.end_of("chief", timeout=90) != [0], "variables are lost with their server"
    assert "ClusterError: ps 0 (127.0.0.1:" in job.log()
    assert job.end_of("worker 0", "worker 1", timeout=90) == [0, 0]

    before, begun = job.log(), job.epochs()
    job.start()  # all tasks, which go on from the newest checkpoint
    job.wait_for(f"epoch {begun + 3} ")
    (first, *others) = steps_and_updates(job.log()[len(before) :])
    assert first[0] >= (begun - 1) * STEPS, "the newest checkpoint was taken"
    assert {updates - steps for steps, updates in others} == {first[1] - first[0]}, "no update is lost or made twice"
    job.send("chief", signal.SIGKILL)
    assert job.end_of("worker 0", "worker 1", "ps 0", timeout=90) == [0, 0, 0], "tasks end when the chief is killed"


def test_tasks_that_never_come_are_named():
    cluster = layout.clusters(2, ps=1)["chief"]
    with pytest.raises(ClusterError, match="start_timeout") as caught:
        mk.strategy.create("parameter_server", cluster=cluster, start_timeout=0.5)
    for name, address in [("worker 0", cluster.workers[0]), ("worker 1", cluster.workers[1]), ("ps 0", cluster.ps[0])]:
        assert f"{name} ({address})" in str(caught.value)
