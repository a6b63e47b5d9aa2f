"""The job files of examples/jobs in a real Slurm on this machine: the tasks are workers; what is taken away goes on.

Needs slurmctld and slurmd (Debian: apt-get install --no-install-recommends slurm-wlm) and root. It asks no munge, and
keeps all its files in a folder of its own.
"""

from __future__ import annotations

import os
import re
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
from changing_training import BATCH
from jobs import WORKERS, environment

from mirrorkit.launch import layout

sys.path.append(str(Path(__file__).parents[1] / "faults"))
import judged

EXAMPLES = Path(__file__).parents[2] / "examples"
ON_ONE_NODE = ("--nodes=1", "--ntasks-per-node=2")

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
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
ReturnToService=2
JobRequeue=0
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
KillWait=30
NodeName={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=4 State=UNKNOWN
NodeName=localhost NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=4 State=UNKNOWN
PartitionName=low Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""

Command = Callable[..., str]


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Command]:
    """`slurm("srun", ...)` runs a command of a Slurm of two nodes and returns what it prints."""
    folder = tmp_path_factory.mktemp("slurm")
    host = socket.gethostname().partition(".")[0]
    for name in ("state", f"spool-{host}", "spool-localhost"):
        (folder / name).mkdir()
    try:
        socket.gethostbyname(host)
    except OSError:
        pytest.skip(f"this machine does not know the address of its own name {host!r}")
    ports = [int(address.rpartition(":")[2]) for address in layout.clusters(3)["worker 0"].workers]
    (folder / "slurm.conf").write_text(CONFIG.format(host=host, folder=folder, ports=ports))
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    own = environment(SLURM_CONF=str(folder / "slurm.conf"), PATH=path)

    def run(*command: object, timeout: float = 240, **changes: str) -> str:
        done = subprocess.run(
            [str(part) for part in command],
            env={**own, **changes},
            cwd=folder,
            timeout=timeout,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"{command}: exit code {done.returncode}\n{done.stdout}{done.stderr[-3000:]}"
        return done.stdout

    try:
        run("slurmctld")
        for node in (host, "localhost"):
            run("slurmd", "-N", node)
        wait_for(lambda: run("sinfo", "-h", "-o", "%D %T").split() == ["2", "idle"], 60)
        yield run
        run("scancel", "--user", "root")
        wait_for(lambda: not run("squeue", "-h"), 60)
    finally:
        for name in (host, "localhost", "slurmctld"):
            with suppress(OSError, ValueError):
                pid = int((folder / f"{name}.pid").read_text())
                os.kill(pid, signal.SIGTERM)
                wait_for(lambda pid=pid: not Path(f"/proc/{pid}").exists(), 60)


def wait_for(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.2)


def test_the_doctor_finds_the_workers_of_a_step_and_what_contradicts_it(slurm):
    doctor = (sys.executable, "-m", "mirrorkit", "doctor")
    lines = slurm("srun", "--ntasks=2", "--label", *doctor).splitlines()
    for said in (r"cluster settings  worker {} of 2 workers \(Slurm\)", "workers .*all 2 found"):
        for rank in (0, 1):
            assert any(re.match(f"{rank}: ok    {said.format(rank)}", line) for line in lines), (said, lines)
    alone = '{"cluster": {"worker": ["localhost:2222"]}, "task": {"type": "worker", "index": 0}}'
    lines = slurm("srun", "--ntasks=2", "bash", "-c", f"{' '.join(doctor)}; [ $? = 1 ]", TF_CONFIG=alone).splitlines()
    assert lines.count("FAIL  cluster settings  the number of tasks is 1 by TF_CONFIG and 2 by Slurm") == 2


def submitted(slurm: Command, folder: Path, *arguments: object, **changes: str) -> str:
    """Submit slurm.sh with a script and its arguments, with two workers on the one node; returns the job's id."""
    output = f"--output={folder}/out"
    script = EXAMPLES / "jobs" / "slurm.sh"
    return slurm("sbatch", "--parsable", *ON_ONE_NODE, output, script, *arguments, **changes).strip()


def output_of(folder: Path) -> str:
    return (folder / "out").read_text(errors="replace")  # half a character where it is being written


def begin_again(slurm: Command, job: str) -> None:
    """Slurm lets a job that it has queued again wait for two minutes; this one need not."""
    wait_for(lambda: slurm("squeue", "-h", "-o", "%T", "--jobs", job).strip() == "PENDING", 120)
    slurm("scontrol", "update", f"JobId={job}", "StartTime=now")


def wait_for_success(slurm: Command, job: str) -> None:
    """Until the job has ended: only then has all that its workers printed come into its output file."""
    wait_for(lambda: not slurm("squeue", "-h", "--jobs", job), 300)
    assert "JobState=COMPLETED" in slurm("scontrol", "show", "job", job)


def assert_it_was_taken_away_once(said: str) -> None:
    assert said.count("SIGTERM: saved in") == 2, said


@pytest.mark.timeout(600)
def test_a_job_whose_time_is_nearly_over_goes_on_where_it_was(slurm, tmp_path):
    job = submitted(slurm, tmp_path, WORKERS, tmp_path, "--slow-from", 30)
    wait_for(lambda: (tmp_path / "happened").exists(), 200)
    slurm("scancel", "--batch", "--signal=USR1", job)  # as --signal=B:USR1 in the file has Slurm do
    begin_again(slurm, job)
    wait_for_success(slurm, job)
    said = output_of(tmp_path)
    assert_it_was_taken_away_once(said)
    assert said.count("done") == 2
    assert not judged.changed(tmp_path)


@pytest.mark.timeout(600)
@pytest.mark.skipif(not os.environ.get("MIRRORKIT_DATA"), reason="needs MNIST in $MIRRORKIT_DATA")
def test_a_job_that_is_queued_again_goes_on_with_a_node_less(slurm, tmp_path):
    (tmp_path / "room").write_text("2")
    training = (Path(__file__).with_name("changing_training.py"), tmp_path, "--pace", 0.5)
    script = EXAMPLES / "jobs" / "slurm.sh"  # two nodes, a task on each
    job = slurm("sbatch", "--parsable", f"--output={tmp_path}/out", script, *training).strip()
    wait_for(lambda: (tmp_path / "out").exists() and "step 100" in output_of(tmp_path), 240)
    slurm("scontrol", "requeue", job)
    wait_for(lambda: slurm("squeue", "-h", "-o", "%T", "--jobs", job).strip() == "PENDING", 120)
    slurm("scontrol", "update", f"JobId={job}", "NumNodes=1-1", "NumTasks=1", "NumCPUs=1")
    begin_again(slurm, job)
    wait_for_success(slurm, job)
    said = output_of(tmp_path)
    assert_it_was_taken_away_once(said)
    assert "done with 1 workers" in said
    with np.load(tmp_path / "end.npz") as file:
        np.testing.assert_allclose(file["count.seen"] * BATCH, 2, atol=1e-3)  # each example once in each of two epochs


@pytest.fixture
def apptainer(tmp_path: Path) -> dict[str, str]:
    """A PATH with an `apptainer` that runs the command outside of any container."""
    program = tmp_path / "bin" / "apptainer"
    program.parent.mkdir()
    program.write_text(
        '#!/bin/bash\n[ "$1 $2 $3" = "exec --nv mk.sif" ] && shift 3 && echo "inside: $*" && exec "$@"\n'
    )
    program.chmod(0o755)
    return {"PATH": os.pathsep.join([str(program.parent), str(Path(sys.executable).parent), os.environ["PATH"]])}


@pytest.mark.parametrize(("required", "exit_code"), [("cpu", 0), ("gpu:64", 1)])
def test_in_a_container_the_devices_are_checked_first(slurm, apptainer, tmp_path, required, exit_code):
    job = (EXAMPLES / "jobs" / "slurm_container.sh", "mk.sif", WORKERS, tmp_path)
    output = f"--output={tmp_path}/out"
    number = slurm("sbatch", "--parsable", *ON_ONE_NODE, output, *job, REQUIRE=required, **apptainer).strip()
    wait_for(lambda: not slurm("squeue", "-h", "--jobs", number), 240)  # sbatch --wait looks after 2, 10 and 42 s
    assert f"ExitCode={exit_code}:0" in slurm("scontrol", "show", "job", number)
    said = output_of(tmp_path)
    assert said.count(f"inside: python -m mirrorkit devices --require {required}") == 2
    if exit_code:
        assert "64 GPU required" in said
        assert "begins" not in said
    else:
        assert 0 < said.rindex("computes correctly") < said.index("begins")
        assert not judged.changed(tmp_path)
