"""What a figure is read with: the machine, versions, environment."""

from __future__ import annotations

import pytest
from harness.machine import about, in_a_line


def test_the_machine_is_known_with_what_sets_up_tensorflow(monkeypatch):
    others = {"TF_CONFIG", "TF_CPP_MIN_LOG_LEVEL", "TF_CLI_CONFIG_FILE"}
    for name in ("TF_ENABLE_ONEDNN_OPTS", *others):
        monkeypatch.setenv(name, "1")
    found = about()
    assert found["environment"]["TF_ENABLE_ONEDNN_OPTS"] == "1"
    assert not others & set(found["environment"])
    assert "; TF_ENABLE_ONEDNN_OPTS=1" in in_a_line(found)


@pytest.mark.parametrize(
    ("argv", "command"),
    [
        (["{here}/examples/a.py", "--net", "cnn"], "python examples/a.py --net cnn"),
        (["/elsewhere/a.py", "--title", "two words"], "python a.py --title 'two words'"),
        (["/env/site-packages/pytest/__main__.py", "-q"], "python -m pytest -q"),
    ],
)
def test_the_command_is_what_is_typed_without_the_machines_folders(argv, command, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", [part.format(here=tmp_path) for part in argv])
    assert about()["command"] == command
