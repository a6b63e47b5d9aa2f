from __future__ import annotations

import os
import signal
import subprocess
import sys

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
