from __future__ import annotations

import subprocess
import sys

import pytest

from mirrorkit import __main__ as command
from mirrorkit.devices import verification


def test_devices_splits_verifies_and_prints():
    done = subprocess.run(
        [sys.executable, "-m", "mirrorkit", "devices", "--devices", "cpu:2"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    lines = done.stdout.splitlines()
    assert lines[0].startswith("TensorFlow ")
    assert [line.split()[0] for line in lines[1:3]] == ["/device:CPU:0", "/device:CPU:1"]


def test_what_is_required_and_missing_is_one_message_and_exit_code_1(monkeypatch, capsys):
    monkeypatch.setattr(verification, "_nvidia_smi", list)
    assert command.main(["devices", "--require", "gpu:99"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("mirrorkit devices: At least 99 GPU required")
    assert "Traceback" not in err


def test_what_is_required_and_there_is_exit_code_0(capsys):
    assert command.main(["devices", "--devices", "cpu:4", "--require", "cpu:4"]) == 0
    assert "/device:CPU:3" in capsys.readouterr().out


def test_the_old_spelling_of_devices_still_works_and_warns(capsys):
    with pytest.warns(DeprecationWarning, match="use --devices cpu:N"):
        assert command.main(["devices", "--cpu", "4", "--require", "cpu:4"]) == 0
    assert "/device:CPU:3" in capsys.readouterr().out


def test_devices_that_cannot_be_read_are_one_message_and_exit_code_1(capsys):
    assert command.main(["devices", "--devices", "four"]) == 1
    assert "devices='four' is not understood" in capsys.readouterr().err


def test_a_failing_device_is_exit_code_1(monkeypatch, capsys):
    monkeypatch.setattr(verification, "_failure", lambda name: f"{name}: broken")
    assert command.main(["devices"]) == 1
    assert "/device:CPU:2: broken" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [[], ["trian"], ["launch", "script.py"], ["devices", "--cpu", "x"], ["devices", "--nonsense"]]
)
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


def test_launch_without_the_script_is_one_message_and_exit_code_1(capsys):
    assert command.main(["launch", "--workers", "2", "nowhere.py"]) == 1
    assert capsys.readouterr().err == "mirrorkit launch: There is no script 'nowhere.py'. Name a Python file.\n"
