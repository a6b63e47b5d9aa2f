"""`python -m mirrorkit bench`: mistakes."""

from __future__ import annotations

import pytest

from mirrorkit import __main__ as command


@pytest.mark.parametrize("arguments", [["bench"], ["bench", "swimming"], ["bench", "scaling", "--replicas", "x"]])
def test_mistakes_are_exit_code_2_and_name_what_there_is(arguments, capsys):
    with pytest.raises(SystemExit, match="2"):
        command.main(arguments)
    assert "usage: python -m mirrorkit bench" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--json", "--plot"])
@pytest.mark.parametrize("place", ["nowhere/figures", "."])
def test_a_file_that_cannot_be_written_is_told_before_the_measurement(option, place, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("mirrorkit.bench.collectives", None)
    assert command.main(["bench", "collectives", option, place]) == 1
    assert capsys.readouterr().err.startswith(f"mirrorkit bench: '{place}' cannot be written: name a file in a folder")


def test_a_picture_of_a_kind_that_cannot_be_drawn_is_told_before_the_measurement(capsys, monkeypatch):
    monkeypatch.setattr("mirrorkit.bench.collectives", None)
    assert command.main(["bench", "collectives", "--plot", "figures.doc"]) == 1
    assert "'figures.doc' cannot be drawn: name a file that ends in .png or .svg" in capsys.readouterr().err


def test_what_cannot_be_measured_is_one_message(capsys):
    assert command.main(["bench", "scaling", "--devices", "cpu", "--replicas", "0"]) == 1
    assert capsys.readouterr().err.startswith("mirrorkit bench: Replicas [0] were asked for")


def test_no_matplotlib_is_told_before_the_measurement(capsys, monkeypatch):
    monkeypatch.setattr("mirrorkit.bench.collectives", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert command.main(["bench", "collectives", "--plot", "figures.svg"]) == 1
    assert "pip install 'mirrorkit[plot]'" in capsys.readouterr().err
