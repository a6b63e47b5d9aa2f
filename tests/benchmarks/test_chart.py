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


def test_values_stand_beside_their_bars_and_marked_bars_have_another_colour():
    chart = Chart("t", ["a", "b"], {"s": [1200.0, None]}, {"s": [(900.0, 2000.0), None]}, bars=True, form=",.0f")
    chart.marked = ["a"]
    axis = drawn(chart)
    assert [(text.get_text(), text.xy) for text in axis.texts] == [("1,200", (2000.0, 0))], "behind the range"
    assert axis.get_xlim()[1] > 2000
    assert axis.patches[0].get_facecolor() != axis.patches[1].get_facecolor()


def test_a_second_value_of_each_bar_is_a_dot_at_the_right():
    chart = Chart("t", ["a", "b"], {"s": [10.0, 5.0]}, bars=True, beside=[0.98, None], beside_label="accuracy")
    left, right = chart.figure().axes
    assert [bar.get_width() for bar in left.patches] == [10, 5]
    (line,) = right.lines
    assert line.get_xydata().tolist()[0] == [0.98, 0]
    assert right.get_xlabel() == "accuracy"
    assert right.get_ylim() == left.get_ylim()


def test_a_missing_value_is_left_out_and_series_are_named():
    axis = drawn(Chart("a < b & c", ["<1>", "2"], {"x & y": [1.0, None], "z": [2.0, 3.0]}, {"z": [None, None]}))
    values = [value for line in axis.lines for value in line.get_ydata() if value == value]
    assert values == [1.0, 2.0, 3.0]
    assert [text.get_text() for text in axis.get_legend().get_texts()] == ["x & y", "z"]
    assert not axis.collections


@pytest.mark.parametrize("values", [[], [None], [0.0], [float("nan")]])
def test_a_chart_of_nothing_is_still_a_plot(values, tmp_path):
    assert Chart("t", ["1"] * len(values), {"s": values}).save(tmp_path / "a.png").stat().st_size


def test_png_and_svg_carry_the_title(tmp_path):
    chart = Chart("a < b & c", ["1", "2"], {"s": [1.0, None], "u": [2.0, 3.0]}, {"s": [(0.5, 1.5), None]})
    png, svg = chart.save(tmp_path / "a.png"), chart.save(str(tmp_path / "a.SVG"))
    assert png.read_bytes().startswith(b"\x89PNG")
    assert b"a < b & c" in png.read_bytes()
    root = ElementTree.parse(svg).getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert root.findtext(".//{http://purl.org/dc/elements/1.1/}title") == "a < b & c"


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
    with pytest.raises(ArgumentError, match=r"a\.doc' cannot be drawn: name a file that ends in \.png or \.svg"):
        chart.save(tmp_path / "a.doc")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ArgumentError, match=r"a\.svg' was asked for, but matplotlib.*pip install matplotlib"):
        chart.save(tmp_path / "a.svg")
    assert not list(tmp_path.iterdir())
