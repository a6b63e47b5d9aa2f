from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
import tensorflow as tf

from mirrorkit import __main__ as command, __version__, devices
from mirrorkit.devices import verification


def test_devices_splits_verifies_and_prints(monkeypatch, capsys):
    """How the CPU is split before TensorFlow starts: tests/devices."""
    split = []
    monkeypatch.setattr(devices, "resolve", split.append)
    assert command.main(["devices", "--devices", "cpu:2", "--require", "cpu:4"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("TensorFlow ")
    assert [line.split()[0] for line in lines[1:3]] == ["/device:CPU:0", "/device:CPU:1"]
    assert split == ["cpu:2"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("devices --require gpu:99", "mirrorkit devices: At least 99 GPU"),
        ("devices --devices four", "mirrorkit devices: devices='four'"),
        ("launch --workers 2 nowhere.py", "mirrorkit launch: There is no script 'nowhere.py'"),
    ],
)
def test_what_cannot_be_is_one_message_and_exit_code_1(arguments, message, monkeypatch, capsys):
    monkeypatch.setattr(verification, "nvidia_smi", lambda *fields: [])
    assert command.main(arguments.split()) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(message)
    assert "Traceback" not in err


@pytest.mark.parametrize("arguments", [[], ["launch", "script.py"], ["devices", "--cpu", "x"]])
def test_mistakes_in_the_arguments_are_exit_code_2(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        command.main(arguments)
    assert caught.value.code == 2
    assert "usage: python -m mirrorkit" in capsys.readouterr().err


def test_launch_gives_the_exit_code_of_the_script_and_passes_its_arguments_on(tmp_path, capsys):
    script = tmp_path / "script.py"
    script.write_text("import sys; print(sys.argv[1:]); sys.exit(6)")
    assert command.main(["launch", "--workers", "2", str(script), "--workers", "9", "-h"]) == 6
    assert "| ['--workers', '9', '-h']" in capsys.readouterr().out


def test_launch_runs_a_module(tmp_path, capsys, monkeypatch):
    (tmp_path / "trainer.py").write_text("import sys; print(__name__, sys.argv[1:]); sys.exit(6)")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    assert command.main(["launch", "--workers", "1", "-m", "trainer", "-m", "x"]) == 6
    assert "worker 0 | __main__ ['-m', 'x']" in capsys.readouterr().out


def test_launch_without_process_groups_says_so(tmp_path, capsys, monkeypatch):
    monkeypatch.delattr(os, "killpg")
    assert command.main(["launch", "--workers", "1", "script.py"]) == 1
    assert "launch needs process groups" in capsys.readouterr().err


def test_it_is_a_program_that_prints_the_versions():
    done = subprocess.run([sys.executable, "-m", "mirrorkit", "--version"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0
    packages = f"TensorFlow {tf.__version__}, Keras {metadata.version('keras')}"
    expected = f"mirrorkit {__version__}, {packages}, Python {platform.python_version()}\n"
    assert done.stdout == expected


@pytest.mark.parametrize(
    ("program", "prog"), [("/venv/bin/mirrorkit", "mirrorkit"), ("/x/mirrorkit/__main__.py", "python -m mirrorkit")]
)
def test_usage_names_the_program_as_it_was_called(monkeypatch, capsys, program, prog):
    monkeypatch.setattr(sys, "argv", [program])
    for arguments in ([], ["doctor", "--start-timeout", "x"], ["launch"]):
        with pytest.raises(SystemExit):
            command.main(arguments)
        assert f"usage: {' '.join([prog, *arguments[:1]])} " in capsys.readouterr().err


def test_the_console_command_is_this_one():
    text = (Path(command.__file__).parents[1] / "pyproject.toml").read_text()
    scripts = re.search(r"\[project.scripts\]\n(.*)\n\n", text)
    assert scripts is not None
    assert scripts[1] == f'mirrorkit = "{command.__name__}:{command.main.__name__}"'
