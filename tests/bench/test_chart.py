"""The own SVG writer: well-formed, to scale, and what stands in for matplotlib."""

from __future__ import annotations

import importlib.util
from xml.etree import ElementTree

import pytest

from mirrorkit.bench.chart import Chart

SVG = "{http://www.w3.org/2000/svg}"


def drawn(chart: Chart) -> ElementTree.Element:
    return ElementTree.fromstring(chart.svg())


def texts(root: ElementTree.Element) -> list[str]:
    return [element.text for element in root.iter(f"{SVG}text")]


def test_points_stand_at_their_values_on_an_axis_from_zero():
    root = drawn(Chart("speed", ["1", "2", "4"], {"strong": [100.0, 200.0, 400.0]}, y_label="images/s"))
    heights = [float(c.get("cy")) for c in root.iter(f"{SVG}circle")]
    labels = {t.text: float(t.get("y")) - 4 for t in root.iter(f"{SVG}text") if t.get("text-anchor") == "end"}
    assert list(labels) == ["0", "100", "200", "300", "400"]
    assert heights == pytest.approx([labels["100"], labels["200"], labels["400"]], abs=0.1)
    places = [float(c.get("cx")) for c in root.iter(f"{SVG}circle")]
    assert places[1] - places[0] == pytest.approx(places[2] - places[1])


def test_bars_are_as_high_as_their_values_and_ranges_cross_them():
    root = drawn(Chart("t", ["a", "b"], {"s": [10.0, 5.0]}, {"s": [(8.0, 10.0), None]}, bars=True))
    heights = [float(r.get("height")) for r in root.iter(f"{SVG}rect") if r.get("fill") == "#0072B2"]
    assert heights[0] == pytest.approx(2 * heights[1])
    spans = [line for line in root.iter(f"{SVG}line") if line.get("x1") == line.get("x2")]
    assert len(spans) == 1
    assert float(spans[0].get("y1")) - float(spans[0].get("y2")) == pytest.approx(0.2 * heights[0], abs=0.2)


def test_labels_are_escaped_and_a_missing_value_is_left_out():
    root = drawn(Chart("a < b & c", ["<1>", "2"], {"x & y": [1.0, None], "z": [2.0, 3.0]}, x_label='"q"'))
    assert {"a < b & c", "<1>", "x & y", '"q"'} <= set(texts(root))
    assert len(list(root.iter(f"{SVG}circle"))) == 3


@pytest.mark.parametrize("values", [[], [None], [0.0], [float("nan")]])
def test_a_chart_of_nothing_is_still_a_picture(values):
    assert drawn(Chart("t", ["1"] * len(values), {"s": values})).tag == f"{SVG}svg"


@pytest.mark.parametrize("largest", [3e-5, 0.07, 1.0, 9.99, 123.4, 8e9])
def test_ticks_are_few_and_reach_the_largest_value(largest):
    ticks = Chart("t", ["1"], {"s": [largest]})._ticks()
    assert ticks[0] == 0
    assert ticks[-1] >= largest * (1 - 1e-6)
    assert 3 <= len(ticks) <= 7


def test_png_by_matplotlib_where_it_is_and_svg_where_it_is_not(tmp_path, monkeypatch):
    chart = Chart("t", ["1", "2"], {"s": [1.0, None], "u": [2.0, 3.0]}, {"s": [(0.5, 1.5), None]}, bars=True)
    if importlib.util.find_spec("matplotlib"):
        assert chart.save(tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    path = chart.save(tmp_path / "b.png")
    assert path.name == "b.svg"
    assert ElementTree.parse(path).getroot().tag == f"{SVG}svg"
