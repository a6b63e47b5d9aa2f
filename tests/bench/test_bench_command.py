"""`python -m mirrorkit bench`: mistakes, and old spellings of options."""

from __future__ import annotations

import pytest

from mirrorkit import __main__ as command
from mirrorkit.bench.chart import Chart
from mirrorkit.bench.report import Report


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


@pytest.mark.parametrize("benchmark", ["scaling", "strategies", "collectives", "gpu"])
def test_old_spellings_of_options_work_and_warn(benchmark, tmp_path, capsys, monkeypatch):
    given = {}

    def measure(**options):
        given.update(options)
        return Report(benchmark, "title", (), [], Chart("t", ["1"], {"s": [1.0]}))

    monkeypatch.setattr(f"mirrorkit.bench.{benchmark}", measure)
    plot = tmp_path / "plot.png"
    old = ["--device", "cpu", "--picture", str(plot)]
    wanted = {"devices": "cpu"}
    if benchmark != "collectives":
        old += ["--batch-size", "64"]
        wanted["global_batch_size"] = 64
    assert command.main(["bench", benchmark, *old]) == 0
    assert given.items() >= wanted.items()
    assert plot.read_bytes().startswith(b"\x89PNG")
    warnings = capsys.readouterr().err
    assert "--device is deprecated and will be removed in mirrorkit 0.3: use --devices." in warnings
    assert "--picture is deprecated and will be removed in mirrorkit 0.3: use --plot." in warnings
    assert ("use --global-batch-size." in warnings) == (benchmark != "collectives")
    assert command.main(["bench", benchmark, "--devices", "cpu", "--plot", str(plot)]) == 0
    assert not capsys.readouterr().err


def test_no_matplotlib_is_told_before_the_measurement(capsys, monkeypatch):
    monkeypatch.setattr("mirrorkit.bench.collectives", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert command.main(["bench", "collectives", "--plot", "figures.svg"]) == 1
    assert "pip install 'mirrorkit[plot]'" in capsys.readouterr().err
