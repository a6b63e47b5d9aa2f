"""Charts: what stands where on the axes, and the files."""

from __future__ import annotations

import importlib.util
from xml.etree import ElementTree

import pytest
from harness.chart import Chart
from matplotlib.axes import Axes

from mirrorkit.errors import ArgumentError


def drawn(chart: Chart) -> Axes:
    (axis,) = chart.figure().axes
    return axis


def test_points_stand_at_their_values_on_an_axis_from_zero():
    axis = drawn(Chart("speed", ["1", "2", "4"], {"strong": [100.0, 200.0, 400.0]}, x_label="n", y_label="images/s"))
    (line,) = axis.lines
    assert line.get_xydata().tolist() == [[0, 100], [1, 200], [2, 400]]
    assert axis.get_ylim()[0] == 0
    assert axis.get_ylim()[1] >= 400
    assert [label.get_text() for label in axis.get_xticklabels()] == ["1", "2", "4"]
    assert (axis.get_title(), axis.get_xlabel(), axis.get_ylabel()) == ("speed", "n", "images/s")
    assert axis.get_legend() is None


def test_bars_are_as_long_as_their_values_and_ranges_cross_them():
    series = {"s": [10.0, 5.0], "u": [1.0, 2.0]}
    axis = drawn(Chart("t", ["a", "b"], series, {"s": [(8.0, 10.0), None]}, bars=True))
    bars = [(round(bar.get_y(), 6), round(bar.get_height(), 6), bar.get_width()) for bar in axis.patches]
    assert bars == [(-0.4, 0.4, 10), (0.6, 0.4, 5), (0.0, 0.4, 1), (1.0, 0.4, 2)], "side by side, around their place"
    ((span,),) = (lines.get_segments() for lines in axis.collections)
    assert span.tolist() == [[8, pytest.approx(-0.2)], [10, pytest.approx(-0.2)]]
    assert [label.get_text() for label in axis.get_yticklabels()] == ["a", "b"]
    assert axis.get_ylim()[0] > axis.get_ylim()[1], "the first one is at the top"


def test_the_same_chart_is_the_same_svg_with_a_description_and_without_a_heading(tmp_path):
    chart = Chart("Above", ["1"], {"s": [1.0]}, bars=True)
    first, second = (chart.save(tmp_path / name, heading=False, description="why") for name in ("a.svg", "b.svg"))
    assert first.read_bytes() == second.read_bytes()
    root = ElementTree.parse(first).getroot()
    assert root.findtext(".//{http://purl.org/dc/elements/1.1/}description") == "why"
    assert "Above" not in [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
    assert b">Above<" in chart.save(tmp_path / "c.svg").read_bytes().split(b"</metadata>")[1]


def test_what_cannot_be_drawn_is_refused(tmp_path, monkeypatch):
    chart = Chart("t", ["1"], {"s": [1.0]})
    with pytest.raises(ArgumentError, match=r"a\.doc"):
        chart.save(tmp_path / "a.doc")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ArgumentError, match="pip install matplotlib"):
        chart.save(tmp_path / "a.svg")
    assert not list(tmp_path.iterdir())
