from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mirrorkit import subprocesses


def test_the_same_mirrorkit_comes_first_on_the_path():
    given = {"PYTHONPATH": "/elsewhere", "OTHER": "1"}
    found = subprocesses.with_mirrorkit(given)
    first, rest = found["PYTHONPATH"].split(os.pathsep, 1)
    assert os.path.samefile(os.path.join(first, "mirrorkit/subprocesses.py"), subprocesses.__file__)
    assert (rest, found["OTHER"]) == ("/elsewhere", "1")
    assert given == {"PYTHONPATH": "/elsewhere", "OTHER": "1"}
    assert subprocesses.with_mirrorkit({})["PYTHONPATH"] == first


def test_a_process_is_ended_with_all_that_it_started():
    code = "import subprocess, sys; print('ready', flush=True); subprocess.run(['sleep', '60'])"
    process = subprocesses.start([sys.executable, "-c", code], environment=os.environ, stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"ready\n"
    subprocesses.send(process)
    assert process.wait(10) == -signal.SIGKILL
    assert process.stdout.read() == b"", "the pipe closes only when the last process that holds it has exited"
    process.stdout.close()
    subprocesses.send(process)  # nobody is left


@pytest.mark.parametrize("closed", ["<&-", "<&- >&- 2>&-"])
def test_a_job_runs_where_standard_streams_are_closed(closed: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("open('was here', 'w').close()")
    launch = f"{sys.executable} -m mirrorkit launch --workers 1 {script}"
    environment = subprocesses.with_mirrorkit(os.environ)
    code = subprocess.call(["sh", "-c", f"exec {launch} {closed}"], env=environment, cwd=tmp_path, timeout=60)
    assert code == 0
    assert (tmp_path / "was here").exists()


def test_an_object_in_a_process_of_its_own_where_standard_streams_are_closed(tmp_path: Path) -> None:
    code = """
from mirrorkit.fetching.remote import Remote
with Remote("statistics:NormalDist", {"mu": 3.0}, timeout=50) as remote:
    assert len(remote.call("quantiles", n=4)) == 3
"""
    environment = {**subprocesses.with_mirrorkit(os.environ), "CODE": code}
    command = f'exec {sys.executable} -c "$CODE" <&- >&-'
    assert subprocess.call(["sh", "-c", command], env=environment, cwd=tmp_path, timeout=60) == 0
