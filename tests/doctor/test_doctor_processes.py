"""The doctor as it is started: real processes, real workers, TensorFlow itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mirrorkit as mk
from mirrorkit import processor

ROOT = Path(mk.__file__).parents[1]
NO_GPU = pytest.mark.skipif(bool(list(Path("/dev").glob("nvidia[0-9]*"))), reason="there is a GPU here")
Found = dict[str, list[dict[str, str]]]


def command(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        [sys.executable, "-m", "mirrorkit", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=150,
    )


def by_name(line: str) -> Found:
    found: Found = {}
    for finding in json.loads(line)["findings"]:
        found.setdefault(finding["name"], []).append(finding)
    return found


def doctor(*arguments: object, **environment: str) -> tuple[int, Found]:
    done = command("doctor", "--json", *arguments, **environment)
    assert "Traceback" not in done.stderr
    return done.returncode, by_name(done.stdout)


def says(found: Any, status: str, what: str, cure: str) -> None:
    assert found["status"] == status, found
    assert what in found["found"], found
    assert cure in found["cure"], found


@pytest.mark.usefixtures("plain")
def test_a_doctor_that_is_stopped_leaves_nothing_behind(distribution, tmp_path):
    """TensorFlow, which a stand-in plays, hangs; the launcher ends the doctor since another worker has failed."""
    hangs = "import os, time; open(os.environ['SEEN'], 'w').write(str(os.getpid())); time.sleep(100)"
    path = os.pathsep.join([str(distribution("tensorflow", "2.21.0", code=hangs)), str(ROOT)])
    doctors = {}
    for number in (signal.SIGTERM, signal.SIGINT):
        temporary, pid = tmp_path / f"tmp{number}", tmp_path / f"pid{number}"
        temporary.mkdir()
        environment = {**os.environ, "PYTHONPATH": path, "TMPDIR": str(temporary), "SEEN": str(pid)}
        command = [sys.executable, "-m", "mirrorkit", "doctor"]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        doctors[number] = temporary, pid, subprocess.Popen(command, env=environment, **pipes)
    for number, (temporary, pid, process) in doctors.items():
        with process:
            until(lambda pid=pid: pid.exists() and pid.read_text())
            process.send_signal(number)
            _, said = process.communicate(timeout=20)
        assert (process.returncode, said) == (128 + number, "")
        until(lambda pid=pid: not Path(f"/proc/{pid.read_text()}").exists())
        assert list(temporary.iterdir()) == []


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.usefixtures("plain")
def test_workers_find_each_other():
    done = command("launch", "--workers", 2, "-m", "mirrorkit", "doctor", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = dict(line.split(" | ", 1) for line in done.stdout.splitlines())
    assert sorted(lines) == ["worker 0", "worker 1"]
    for line in lines.values():
        says(by_name(line)["workers"][0], "ok", "all 2 found each other", "")


@pytest.mark.slow
@NO_GPU
@pytest.mark.usefixtures("plain")
def test_all_that_is_wrong_is_named_in_one_run(tmp_path):
    (tmp_path / "nvidia-smi").write_text(
        "#!/bin/sh\ncase $1 in *,*) echo NVIDIA X, 1000, 555;; *) echo NVIDIA X;; esac\n"
    )
    (tmp_path / "nvidia-smi").chmod(0o755)
    (tmp_path / "runs").touch()
    code, found = doctor(
        *("--data", tmp_path / "nowhere", "--checkpoints", tmp_path / "runs", "--require", "gpu"),
        TF_CONFIG="{",
        PATH=f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        TF_ENABLE_ONEDNN_OPTS="0",
    )
    assert code == 1
    says(found["cluster settings"][0], "failure", "TF_CONFIG is set but cannot be read", "Write for example")
    says(found["data"][0], "failure", "No such file", "Correct --data")
    says(found["checkpoints"][0], "failure", "Not a directory", "choose a folder")
    says(found["GPUs"][0], "failure", "TensorFlow uses 0 of 1; it says: ", "--gpus all")
    says(found["devices"][0], "failure", "At least 1 GPU required, 0 found", "that TensorFlow does not use")
    if "avx2" in processor.flags():
        says(found["oneDNN"][0], "warning", "off; convolutions", "export TF_ENABLE_ONEDNN_OPTS=1")
    assert found["import"][0]["status"] == "ok"
