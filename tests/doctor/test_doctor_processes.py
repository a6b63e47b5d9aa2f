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
from mirrorkit.cluster import free_ports

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
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_doctor_that_is_stopped_leaves_nothing_behind(distribution, tmp_path, number):
    """TensorFlow, which a stand-in plays, hangs; the launcher ends the doctor since another worker has failed."""
    pid = tmp_path / "pid"
    hangs = f"import os, time; open({str(pid)!r}, 'w').write(str(os.getpid())); time.sleep(100)"
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    path = os.pathsep.join([str(distribution("tensorflow", "2.21.0", code=hangs)), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": path, "TMPDIR": str(temporary)}
    doctor = [sys.executable, "-m", "mirrorkit", "doctor"]
    with subprocess.Popen(
        doctor, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        until(lambda: pid.exists() and pid.read_text())
        process.send_signal(number)
        _, said = process.communicate(timeout=20)
    assert (process.returncode, said) == (128 + number, "")
    until(lambda: not Path(f"/proc/{pid.read_text()}").exists())
    assert list(temporary.iterdir()) == []


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.usefixtures("plain")
def test_workers_that_are_all_right_sum_together():
    done = command("launch", "--workers", 2, "-m", "mirrorkit", "doctor", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = dict(line.split(" | ", 1) for line in done.stdout.splitlines())
    assert sorted(lines) == ["worker 0", "worker 1"]
    for line in lines.values():
        found = by_name(line)
        says(found["workers"][0], "ok", "all 2 found each other", "")
        says(found["all-reduce"][0], "ok", "2 replicas on CPU:0 of each of 2 workers: sums are exact", "")


@pytest.mark.slow
@pytest.mark.usefixtures("plain")
def test_parameter_servers_are_tried_by_the_chief():
    done = command("launch", "--workers", 1, "--ps", 1, "-m", "mirrorkit", "doctor", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = dict(line.split(" | ", 1) for line in done.stdout.splitlines())
    says(by_name(lines["chief"])["all-reduce"][0], "ok", "1 worker, 1 ps: the workers' 20 additions arrived", "")


@pytest.mark.slow
@pytest.mark.usefixtures("plain")
def test_a_worker_that_is_missing_is_named_within_a_minute():
    here, missing = (f"127.0.0.1:{port}" for port in free_ports(2))
    config = {"cluster": {"worker": [here, missing]}, "task": {"type": "worker", "index": 0}}
    start = time.monotonic()
    code, found = doctor(TF_CONFIG=json.dumps(config))
    assert time.monotonic() - start < 60
    assert code == 1
    says(found["workers"][0], "failure", f"worker 1 ({missing}) did not start within 30 s", "Look at their output")
    says(found["workers"][1], "failure", f"worker 1 ({missing}): its machine answers", "Start the doctor there")
    says(found["all-reduce"][0], "warning", "not tried", "what failed above")
    assert found["devices"][0]["status"] == "ok"


@pytest.mark.slow
@NO_GPU
@pytest.mark.usefixtures("plain")
def test_all_that_is_wrong_is_named_in_one_run(tmp_path):
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho NVIDIA X, 1000, 0\n")
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
    says(found["data"][0], "failure", "no folder", "Correct --data")
    says(found["checkpoints"][0], "failure", "is a file, not a folder", "Choose a folder")
    says(found["GPUs"][0], "failure", "the driver's library does not load; TensorFlow says: ", "--gpus all")
    says(found["devices"][0], "failure", "At least 1 GPU required, 0 found", "that TensorFlow does not use")
    if "avx2" in processor.flags():
        says(found["oneDNN"][0], "warning", "TF_ENABLE_ONEDNN_OPTS=0", "export TF_ENABLE_ONEDNN_OPTS=1")
    assert found["import"][0]["status"] == "ok"


@pytest.mark.slow
@pytest.mark.usefixtures("plain")
def test_a_keras_that_cannot_be_used_is_named_by_its_setting_and_by_itself():
    code, found = doctor(TF_USE_LEGACY_KERAS="1")
    assert code == 1
    says(found["Keras's settings"][0], "failure", "Keras 2", "unset TF_USE_LEGACY_KERAS")
    says(found["import"][1], "failure", "mirrorkit needs Keras 3, but TF_USE_LEGACY_KERAS", "Unset TF_USE_LEGACY_KERAS")
    says(found["all-reduce"][0], "warning", "not tried", "")
