"""`python -m mirrorkit bench`: mistakes."""

from __future__ import annotations

import pytest

from mirrorkit import __main__ as command


@pytest.mark.parametrize("arguments", [["bench"], ["bench", "swimming"], ["bench", "scaling", "--replicas", "x"]])
def test_mistakes_are_exit_code_2_and_name_what_there_is(arguments, capsys):
    with pytest.raises(SystemExit, match="2"):
        command.main(arguments)
    assert "usage: python -m mirrorkit bench" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("collectives --json nowhere/figures", "'nowhere/figures' cannot be written: name a file in a folder"),
        ("collectives --plot nowhere/figures", "'nowhere/figures' cannot be written: name a file in a folder"),
        ("collectives --json .", "'.' cannot be written: name a file in a folder"),
        ("collectives --plot figures.doc", "'figures.doc' cannot be drawn: name a file that ends in .png or .svg"),
        ("scaling --devices cpu --replicas 0", "Replicas [0] were asked for"),
    ],
)
def test_what_cannot_be_is_one_message_before_the_measurement(arguments, message, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("mirrorkit.bench.collectives", None)
    assert command.main(["bench", *arguments.split()]) == 1
    assert capsys.readouterr().err.startswith(f"mirrorkit bench: {message}")


def test_no_matplotlib_is_told_before_the_measurement(capsys, monkeypatch):
    monkeypatch.setattr("mirrorkit.bench.collectives", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert command.main(["bench", "collectives", "--plot", "figures.svg"]) == 1
    assert "pip install matplotlib" in capsys.readouterr().err
