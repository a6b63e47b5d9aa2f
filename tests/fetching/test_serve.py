"""The other end of a `Remote` in a real script: no `__main__` guard is needed, and nothing outlives the script."""

from __future__ import annotations

import os
import subprocess
import sys
from multiprocessing.connection import Pipe
from pathlib import Path

import pytest

HERE = Path(__file__).parent


SCRIPT = f"""
import sys
sys.path.insert(0, {str(HERE)!r})
from mirrorkit.fetching import Remote

with Remote("remote_subjects:Counter", {{"start": 1}}) as remote:
    print(remote.call("add", number=1))
"""


def test_a_script_without_a_main_guard_is_not_run_again(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(HERE.parents[1])}
    command = [sys.executable, str(tmp_path / "script.py")]
    done = subprocess.run(command, stdout=subprocess.PIPE, env=environment, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "2\n")


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
