"""The other end of a `Remote` in a real script: no `__main__` guard is needed, and nothing outlives the script."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from multiprocessing.connection import Pipe
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SCRIPT = """
import sys
sys.path.insert(0, {folder!r})
from mirrorkit.fetching import Remote

remote = Remote("remote_subjects:Counter", {{"start": 1}})
print(remote.call("pid"), flush=True)
{then}
"""


def script(tmp_path: Path, then: str) -> subprocess.Popen[str]:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT.format(folder=str(HERE), then=then))
    environment = {**os.environ, "PYTHONPATH": str(HERE.parents[1]), "TMPDIR": str(tmp_path)}
    return subprocess.Popen([sys.executable, str(path)], stdout=subprocess.PIPE, env=environment, text=True)


def test_a_script_without_a_main_guard_is_not_run_again(tmp_path):
    with script(tmp_path, "remote.__exit__()") as process:
        printed, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert len(printed.splitlines()) == 1


@pytest.mark.parametrize("then", ["import time; time.sleep(600)", "remote.call('sleep', seconds=600)"])
def test_nothing_is_left_of_a_parent_that_is_killed_whether_the_process_waits_or_works(then, tmp_path):
    with script(tmp_path, then) as process:
        pid = int(process.stdout.readline())
        time.sleep(0.2)
        os.kill(process.pid, signal.SIGKILL)
    deadline = time.monotonic() + 20
    while alive(pid):
        assert time.monotonic() < deadline, "it outlived its parent"
        time.sleep(0.02)
    assert [path.name for path in tmp_path.iterdir()] == ["script.py"], "its temporary files are left"


@pytest.mark.parametrize("sent", [[], [("remote_subjects:Counter", {"start": 1}), ("sleep", {"seconds": 0.3})]])
def test_nothing_is_left_where_nobody_sends_a_request_or_waits_for_the_answer(sent, tmp_path):
    folder = tmp_path / "its files"
    folder.mkdir()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parents[1])])}
    ours, theirs = Pipe()
    with theirs:
        command = [sys.executable, "-m", "mirrorkit.fetching.serve", str(theirs.fileno()), str(folder)]
        process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environment, start_new_session=True)
    with process, ours:
        for message in sent:
            ours.send(message)
        ours.close()
        process.wait(timeout=60)
    assert not folder.exists()


def alive(pid: int) -> bool:
    """Whether the process runs; one that has exited may stay a zombie where nobody waits for it."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except OSError:
        return False
    return state != "Z"
