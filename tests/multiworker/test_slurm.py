"""A real Slurm on this machine: the tasks of a step are the workers, and a job that is taken away goes on.

Needs slurmctld and slurmd (Debian: apt-get install --no-install-recommends slurm-wlm munge) and root.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from launching import environment, launched

from mirrorkit.launch import layout

SCRIPT = Path(__file__).with_name("interrupted_training.py")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (shutil.which("slurmctld") and shutil.which("slurmd")), reason="Slurm is not installed"),
    pytest.mark.skipif(os.getuid() != 0, reason="the Slurm of this test runs as root"),
]

CONFIG = """
AuthType=auth/none
CredType=cred/none
ClusterName=lab
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
ReturnToService=2
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
KillWait=30
NodeName={host} NodeAddr=127.0.0.1 CPUs=4 State=UNKNOWN
PartitionName=low Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""

Command = Callable[..., str]


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Command]:
    """`slurm("srun", ...)` runs a command of a Slurm of one node and returns what it prints."""
    folder = tmp_path_factory.mktemp("slurm")
    for name in ("state", "spool"):
        (folder / name).mkdir()
    host = socket.gethostname().partition(".")[0]
    ports = [int(address.rpartition(":")[2]) for address in layout.clusters(2)["worker 0"].workers]
    (folder / "slurm.conf").write_text(CONFIG.format(host=host, folder=folder, ports=ports))
    own = environment(SLURM_CONF=str(folder / "slurm.conf"))

    def run(*command: object, timeout: float = 240) -> str:
        done = subprocess.run(
            [str(part) for part in command], env=own, cwd=folder, timeout=timeout, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{command}: exit code {done.returncode}\n{done.stdout}{done.stderr[-3000:]}"
        return done.stdout

    try:
        run("slurmctld")
        run("slurmd")
        wait_for(lambda: "idle" in run("sinfo", "-h", "-o", "%T"), 60)
        yield run
        run("scancel", "--user", "root")
        wait_for(lambda: not run("squeue", "-h"), 60)
    finally:
        for name in ("slurmd", "slurmctld"):
            with suppress(OSError, ValueError):
                pid = int((folder / f"{name}.pid").read_text())
                os.kill(pid, signal.SIGTERM)
                wait_for(lambda pid=pid: not Path(f"/proc/{pid}").exists(), 60)


def wait_for(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.2)


def end(folder: Path, worker: int) -> list[np.ndarray]:
    with np.load(folder / f"end{worker}.npz") as file:
        return [file[name] for name in file.files]


@pytest.fixture(scope="module")
def launched_run(tmp_path_factory: pytest.TempPathFactory) -> list[np.ndarray]:
    """What two workers of the launcher end with."""
    folder = tmp_path_factory.mktemp("launched")
    launched(SCRIPT, folder, folder=folder)
    return end(folder, 0)


def assert_ends_are(expected: list[np.ndarray], folder: Path) -> None:
    for worker in (0, 1):
        for a, b in zip(end(folder, worker), expected, strict=True):
            np.testing.assert_array_equal(a, b)


def test_the_tasks_of_srun_are_the_workers(slurm, launched_run, tmp_path):
    printed = slurm("srun", "--ntasks=2", "--label", sys.executable, SCRIPT, tmp_path)
    assert sorted(line for line in printed.splitlines() if "done" in line) == ["0: done", "1: done"]
    assert_ends_are(launched_run, tmp_path)


def test_a_job_that_is_requeued_goes_on_where_it_was(slurm, launched_run, tmp_path):
    batch = tmp_path / "job.sh"
    step = f"srun --ntasks=2 --kill-on-bad-exit=1 {sys.executable} {SCRIPT} {tmp_path} --event slow --step 30"
    batch.write_text(f"#!/bin/bash\n#SBATCH --ntasks=2 --requeue --open-mode=append\n{step}\n")
    job = slurm("sbatch", "--parsable", f"--output={tmp_path}/out", batch).strip()
    wait_for(lambda: (tmp_path / "happened").exists(), 200)
    slurm("scontrol", "requeue", job)  # SIGTERM to the tasks, as on preemption
    wait_for(lambda: (tmp_path / "end0.npz").exists() and (tmp_path / "end1.npz").exists(), 300)
    said = (tmp_path / "out").read_text()
    assert said.count("SIGTERM: saved in") == 2, said
    assert said.count("done") == 2
    assert_ends_are(launched_run, tmp_path)
