"""An object in a process of its own, and the other end."""

from __future__ import annotations

import os
import subprocess
import sys
from multiprocessing.connection import Pipe
from pathlib import Path

import pytest
from harness.remote import Remote

from mirrorkit.errors import MirrorkitError

# --- an object in another process: answers, errors, time limits, and nothing left behind


HERE = str(Path(__file__).parent)


@pytest.fixture(autouse=True)
def _subjects(monkeypatch):
    monkeypatch.syspath_prepend(HERE)


def test_an_object_keeps_its_state_and_answers_whatever_it_prints():
    with Remote("remote_subjects:Counter", {"start": 5}) as remote:
        assert remote.call("add", number=2) == 7
        assert remote.call("add", number=1) == 8


def test_variables_of_the_environment_are_its_own():
    with Remote("remote_subjects:Counter", {"start": 0}, environment={"WHO": "the other"}) as remote:
        assert remote.call("environment", name="WHO") == "the other"
        assert "WHO" not in os.environ


def test_a_path_in_its_environment_hides_nothing():
    with Remote("remote_subjects:Counter", {"start": 5}, environment={"PYTHONPATH": "elsewhere"}) as remote:
        assert remote.call("add", number=2) == 7


@pytest.mark.parametrize(
    ("arguments", "call", "message"),
    [
        ({"start": 0}, {"method": "fail"}, r"failed: ValueError: no such number[\s\S]*Traceback"),
        ({"begin": 0}, {"method": "fail"}, r"unexpected keyword argument 'begin'"),
        ({"start": 0}, {"method": "die", "code": 3}, r"the process ended with 3"),
    ],
)
def test_what_fails_is_named_with_its_output(arguments, call, message):
    with (
        Remote("remote_subjects:Counter", arguments) as remote,
        pytest.raises(MirrorkitError, match=message),
    ):
        remote.call(**call)


def test_an_answer_that_does_not_come_is_an_error_and_the_process_is_ended():
    with Remote("remote_subjects:Counter", {"start": 0}, timeout=1.0) as remote:
        pid = remote.call("pid")
        with pytest.raises(MirrorkitError, match="no answer within 1 s"):
            remote.call("sleep", seconds=60)
    assert not Path(f"/proc/{pid}").exists()


def test_a_module_is_called_as_an_object_is():
    with Remote("remote_subjects") as remote:
        assert remote.call("double", number=4) == 8


# --- the other end of a `Remote` in a real script: no `__main__` guard is needed, and nothing outlives the script


TESTS = Path(__file__).parent
ROOT = TESTS.parents[1]
PATH = os.pathsep.join(map(str, (TESTS, ROOT / "examples/benchmarks", ROOT)))


SCRIPT = f"""
import sys
sys.path.insert(0, {str(TESTS)!r})
from harness.remote import Remote

with Remote("remote_subjects:Counter", {{"start": 1}}) as remote:
    print(remote.call("add", number=1))
"""


def test_a_script_without_a_main_guard_is_not_run_again(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": PATH}
    command = [sys.executable, str(tmp_path / "script.py")]
    done = subprocess.run(command, stdout=subprocess.PIPE, env=environment, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "2\n")


@pytest.mark.parametrize("sent", [[], [("remote_subjects:Counter", {"start": 1}), ("sleep", {"seconds": 0.3})]])
def test_nothing_is_left_where_nobody_sends_a_request_or_waits_for_the_answer(sent, tmp_path):
    folder = tmp_path / "its files"
    folder.mkdir()
    environment = {**os.environ, "PYTHONPATH": PATH}
    ours, theirs = Pipe()
    with theirs:
        command = [sys.executable, "-m", "harness.serve", str(theirs.fileno()), str(folder)]
        process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environment, start_new_session=True)
    with process, ours:
        for message in sent:
            ours.send(message)
        ours.close()
        process.wait(timeout=60)
    assert not folder.exists()
