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

    def end_of(self, *names: str, timeout: float = 60) -> list[int]:
        return [self.processes[name].wait(timeout) for name in names]

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()


@pytest.fixture
def job(tmp_path):
    jobs = []

    def make(epochs: int, *, pause: float = 0.0, script: list[str] | None = None) -> Job:
        command = script or [str(SCRIPT), str(tmp_path / "checkpoints"), str(epochs), str(pause)]
        jobs.append(Job(tmp_path, *command))
        return jobs[-1]

    yield make
    for each in jobs:
        each.close()


def steps_done(log: str) -> tuple[int, int]:
    """Steps that the loop counted, and updates that the optimizer counted."""
    match = re.search(r"^done (\d+) (\d+) ", log, re.MULTILINE)
    assert match, log[-3000:]
    return int(match[1]), int(match[2])


@pytest.mark.slow
def test_tasks_end_when_the_chief_is_killed(job):
    tasks = job(epochs=1000, pause=0.1)
    tasks.start()
    tasks.wait_for("epoch 1 ")
    tasks.send("chief", signal.SIGKILL)
    assert tasks.end_of("worker 0", "worker 1", "ps 0", timeout=30) == [0, 0, 0]


@pytest.mark.slow
def test_training_goes_on_while_a_worker_is_killed_and_comes_back(job):
    tasks = job(epochs=8, pause=0.3)
    tasks.start()
    tasks.wait_for("epoch 1 ")
    tasks.send("worker 1", signal.SIGKILL)
    tasks.wait_for("epoch 3 ")  # without it
    tasks.start("worker 1")
    assert tasks.end_of("chief", timeout=200) == [0], tasks.log()[-3000:]
    assert tasks.end_of("worker 0", "worker 1", "ps 0", timeout=30) == [0, 0, 0]
    steps, updates = steps_done(tasks.log())
    assert steps == 8 * STEPS
    assert steps <= updates <= steps + 10, "only the piece that the worker was at may have been made twice"


@pytest.mark.slow
def test_a_dead_parameter_server_is_named_and_the_run_goes_on_from_its_checkpoint(job):
    tasks = job(epochs=6, pause=0.3)
    tasks.start()
    tasks.wait_for("epoch 2 ")
    killed = time.monotonic()
    tasks.send("ps 0", signal.SIGKILL)
    assert tasks.end_of("chief", timeout=60) != [0]
    assert time.monotonic() - killed < 30
    assert "ClusterError: ps 0 (127.0.0.1:" in tasks.log()
    assert tasks.end_of("worker 0", "worker 1", timeout=30) == [0, 0]
    before = tasks.log()
    tasks.start()
    assert tasks.end_of("chief", timeout=200) == [0], tasks.log()[-3000:]
    resumed = re.search(r"at step (\d+)", tasks.log()[len(before) :])
    assert resumed
    assert int(resumed[1]) >= 2 * STEPS, "the newest checkpoint was taken"
    assert steps_done(tasks.log()) == (6 * STEPS, 6 * STEPS)


@pytest.mark.slow
def test_a_worker_that_stands_still_for_a_while_does_no_harm_and_all_tasks_end_with_the_chief(job):
    tasks = job(epochs=6, pause=0.1)
    tasks.start()
    tasks.wait_for("epoch 1 ")
    tasks.send("worker 0", signal.SIGSTOP)
    time.sleep(20)
    tasks.send("worker 0", signal.SIGCONT)
    assert tasks.end_of("chief", timeout=200) == [0], tasks.log()[-3000:]
    assert tasks.end_of("worker 0", "worker 1", "ps 0", timeout=30) == [0, 0, 0]
    assert steps_done(tasks.log()) == (6 * STEPS, 6 * STEPS)


def test_tasks_that_never_come_are_named():
    cluster = layout.clusters(2, ps=1)["chief"]
    with pytest.raises(ClusterError, match="start_timeout") as caught:
        mk.strategy.create("parameter_server", cluster=cluster, start_timeout=0.5)
    for name, address in [("worker 0", cluster.workers[0]), ("worker 1", cluster.workers[1]), ("ps 0", cluster.ps[0])]:
        assert f"{name} ({address})" in str(caught.value)


@pytest.mark.slow
def test_a_server_whose_chief_never_comes_says_so(run_python):
    cluster = layout.clusters(1, ps=1)["ps 0"]
    result = run_python(
        "import mirrorkit as mk; mk.strategy.create('parameter_server', start_timeout=1)",
        env={"TF_CONFIG": cluster.to_tf_config()},
        check=False,
    )
    assert result.returncode == 1
    assert f"ps 0 waited 1 s for the chief ({cluster.chief})" in result.stderr
