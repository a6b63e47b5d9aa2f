"""An object in another process: answers, errors, time limits, and nothing left behind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mirrorkit.errors import MirrorkitError
from mirrorkit.fetching import Remote

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
