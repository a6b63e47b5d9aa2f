"""The doctor as it is started: real processes, real workers, TensorFlow itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from jobs import assert_gone, until

import mirrorkit as mk

ROOT = Path(mk.__file__).parents[1]


def command(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        [sys.executable, "-m", "mirrorkit", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=150,
    )


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
            until(lambda pid=pid: pid.exists() and pid.read_text(), "its import of TensorFlow", limit=20)
            process.send_signal(number)
            _, said = process.communicate(timeout=20)
        assert (process.returncode, said) == (128 + number, "")
        assert_gone([int(pid.read_text())])
        assert list(temporary.iterdir()) == []


@pytest.mark.slow
@pytest.mark.usefixtures("plain")
def test_workers_find_each_other():
    done = command("launch", "--workers", 2, "-m", "mirrorkit", "doctor", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = dict(line.split(" | ", 1) for line in done.stdout.splitlines())
    assert sorted(lines) == ["worker 0", "worker 1"]
    for line in lines.values():
        (found,) = [finding for finding in json.loads(line)["findings"] if finding["name"] == "workers"]
        assert (found["status"], found["cure"]) == ("ok", "")
        assert "all 2 found each other" in found["found"]
