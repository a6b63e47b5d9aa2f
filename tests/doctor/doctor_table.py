"""The doctor in real processes against set-ups broken on purpose: `python tests/doctor/doctor_table.py`.

Prints a table in Markdown: what was broken, what the doctor says of it, and the cure. Needs no GPU: a stand-in plays
nvidia-smi. Needs root for the full disk.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mirrorkit.cluster import free_ports

ROOT = Path(__file__).parents[2]
SLURM = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": "localhost", "SLURM_STEP_TASKS_PER_NODE": "2"}
SLURM |= {"SLURM_PROCID": "0", "SLURM_NODEID": "0", "SLURM_JOB_ID": "7"}


@dataclass(frozen=True)
class Setup:
    """What is broken, how, and the finding that must name it, with the words that matter and the cure."""

    broken: str
    finding: str
    found: str = ""
    cure: str = ""
    arguments: Sequence[object] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    status: str = "failure"


def tf_config(*workers: str, index: int = 0) -> dict[str, str]:
    return {"TF_CONFIG": json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}})}


def installed(folder: Path, name: str, version: str, code: str | None = None) -> dict[str, str]:
    """A folder in which a distribution of that version lies, as PYTHONPATH."""
    place = folder / f"{name}-{version}-{code is None}"
    about = place / f"{name}-{version}.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n\n")
    if code is not None:
        (place / name).mkdir()
        (place / name / "__init__.py").write_text(code)
    return {"PYTHONPATH": os.pathsep.join([str(place), str(ROOT)])}


@contextlib.contextmanager
def full_disk(folder: Path) -> Iterator[Path]:
    """A disk of 1 MiB."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def setups(folder: Path, disk: Path, taken: int) -> list[Setup]:
    """All of them; at the port `taken` a process listens."""
    here, other, third = (f"127.0.0.1:{port}" for port in free_ports(3))
    driver = folder / "bin"
    driver.mkdir()
    (driver / "nvidia-smi").write_text("#!/bin/sh\necho NVIDIA X\n")
    (driver / "nvidia-smi").chmod(0o755)
    gpu = {"PATH": f"{driver}{os.pathsep}{os.environ['PATH']}"}
    (folder / "empty").mkdir()
    (folder / "file").touch()
    room = "folder in which you may create files"
    beyond = tf_config(here, other, index=2)
    cluster = [
        ("`TF_CONFIG` is no JSON", "cannot be read", "Write for example", {"TF_CONFIG": "{'cluster': ..."}),
        ("a task index beyond the workers", "worker 2, but there are 2", "another index", beyond),
        ("one address for two workers", "worker 0 and worker 1 have the same", "different port", tf_config(here, here)),
        ("a left-over `TF_CONFIG` in a Slurm step", "1 by TF_CONFIG and 2 by Slurm", "Unset", SLURM | tf_config(here)),
    ]
    unloadable = "raise ImportError('libcublas.so.12: cannot open shared object file')"
    return [
        *(Setup(broken, "cluster settings", found, cure, (), variables) for broken, found, cure, variables in cluster),
        Setup(
            *("a Slurm job without `srun`", "cluster settings", "4 tasks, but srun did not", "by srun"),
            environment={"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4"},
            status="warning",
        ),
        Setup(
            *("the port is taken", "network", f"worker 0 should listen on port {taken}", "another port"),
            environment=tf_config(f"127.0.0.1:{taken}", other),
        ),
        Setup(
            *("a host name that nobody knows", "network", r"'gpu-07\.invalid' \(worker 1\)", "misspelled host name"),
            environment=tf_config(here, "gpu-07.invalid:2222"),
        ),
        Setup(
            *("a worker that did not start", "workers", f"worker 1 .{other}.: its machine answers", "Start the doctor"),
            arguments=("--start-timeout", 0.5),
            environment=tf_config(third, other),
        ),
        Setup("a GPU whose libraries do not load", "GPUs", environment=gpu),
        Setup(
            "hidden GPUs: `CUDA_VISIBLE_DEVICES=`",
            "GPUs",
            environment={**gpu, "CUDA_VISIBLE_DEVICES": ""},
            status="warning",
        ),
        Setup("a GPU is wanted, there is none", "devices", arguments=("--require", "gpu")),
        Setup("oneDNN off", "oneDNN", environment={"TF_ENABLE_ONEDNN_OPTS": "0"}, status="warning"),
        Setup("checkpoints where a file is", "checkpoints", "Not a dir", room, ("--checkpoints", folder / "file")),
        Setup("a full disk", "checkpoints", "No space left", "Make room", ("--checkpoints", disk)),
        Setup("no data folder", "data", "nowhere cannot be read", "Correct --data", ("--data", folder / "nowhere")),
        Setup(
            *("an empty data folder", "data", "no file with anything in", "or MIRRORKIT_DATA"),
            environment={"MIRRORKIT_DATA": str(folder / "empty")},
        ),
        Setup(
            *("TensorFlow is too old", "TensorFlow", r"2\.10\.1; mirrorkit needs", "tensorflow>=2.18"),
            environment=installed(folder, "tensorflow", "2.10.1"),
        ),
        Setup(
            *("two TensorFlows", "TensorFlow", "overwrite each other's files", "pip uninstall"),
            environment=installed(folder, "tensorflow_cpu", "2.21.0"),
            status="warning",
        ),
        Setup(
            *("TensorFlow's libraries are missing", "import"),
            environment=installed(folder, "tensorflow", "2.21.0", unloadable),
        ),
        Setup(
            *("protobuf is too old", "requirements", r"needs protobuf\S+; found 3\.20\.3", "pip install 'protobuf"),
            environment=installed(folder, "protobuf", "3.20.3"),
            status="warning",
        ),
        Setup("Keras 2: `TF_USE_LEGACY_KERAS=1`", "Keras", environment={"TF_USE_LEGACY_KERAS": "1"}),
        Setup("`KERAS_BACKEND=jax`", "Keras", environment={"KERAS_BACKEND": "jax"}),
    ]


def main() -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("TF_CONFIG", "SLURM_", "KERAS"))}
    print("| broken on purpose | the doctor says | cure | exit code | s |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name, socket.create_server(("127.0.0.1", 0)) as server:
        folder = Path(name)
        with full_disk(folder / "disk") as disk:
            for setup in setups(folder, disk, server.getsockname()[1]):
                start = time.monotonic()
                done = subprocess.run(
                    [sys.executable, "-m", "mirrorkit", "doctor", "--json", *map(str, setup.arguments)],
                    env={**clean, "PYTHONPATH": str(ROOT), **setup.environment},
                    capture_output=True,
                    text=True,
                    check=False,
                )
                findings = json.loads(done.stdout)["findings"]
                named = [f for f in findings if (f["name"], f["status"]) == (setup.finding, setup.status)]
                assert named, (setup, findings)
                found, cure = (named[0][key].replace("\n", " ").replace(name, "/data") for key in ("found", "cure"))
                sign = {"warning": "warn", "failure": "FAIL"}[named[0]["status"]]
                seconds = time.monotonic() - start
                print(
                    f"| {setup.broken} | {sign} {setup.finding}: {found} | {cure} | {done.returncode} | {seconds:.0f} |"
                )


if __name__ == "__main__":
    main()
