"""One plot: lines or bars over a few places on the x axis, drawn by matplotlib."""

from __future__ import annotations

import importlib.util
import itertools
import math
import os
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from mirrorkit.errors import ArgumentError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's colours, which colour-blind people can tell apart: https://jfly.uni-koeln.de/color/
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_SUFFIXES = (".png", ".svg")


def check_plot(path: str | os.PathLike[str]) -> None:
    """Refuse a file that cannot be drawn: one that is neither .png nor .svg, or any without matplotlib."""
    if Path(path).suffix.lower() not in _SUFFIXES:
        raise ArgumentError(f"{str(path)!r} cannot be drawn: name a file that ends in {' or '.join(_SUFFIXES)}.")
    if importlib.util.find_spec("matplotlib") is None:
        raise ArgumentError(
            f"{str(path)!r} was asked for, but matplotlib, which draws it, is not installed: pip install matplotlib."
        )


@dataclass
class Chart:
    """What to draw. Series and ranges (lowest and highest values) hold a value or None for each place.

    Lines have their places on the x axis; bars are horizontal, the first one at the top.
    """

    title: str
    x: Sequence[str]  # labels of the places, which are evenly spaced
    series: Mapping[str, Sequence[float | None]]  # by name; all values from 0 on
    ranges: Mapping[str, Sequence[tuple[float, float] | None]] = field(default_factory=dict)  # by the same names
    x_label: str = ""
    y_label: str = ""
    bars: bool = False  # or lines
    beside: Sequence[float | None] = ()  # bars only: another value of each place, a dot on an axis at the right
    beside_label: str = ""
    form: str = ""  # bars only: a format such as ",.0f" writes each value beside its bar
    marked: Sequence[str] = ()  # bars only: places drawn in the second colour

    def save(self, path: str | os.PathLike[str], *, heading: bool = True, description: str | None = None) -> Path:
        """Write a PNG or SVG file and return its path.

        `heading` writes the title above; the file's metadata have it anyway, and the description if there is one. The
        same chart gives the same file, up to the version of matplotlib.
        """
        check_plot(path)
        from matplotlib import rc_context

        svg = Path(path).suffix.lower() == ".svg"
        metadata = {"Title": self.title, **({"Description": description} if description else {})}
        with rc_context({"svg.hashsalt": "mirrorkit", "svg.fonttype": "none"}):
            figure = self.figure(heading=heading)
            once = {"Date": None, "Creator": None} if svg else {}
            figure.savefig(path, bbox_inches="tight", dpi=120, metadata={**metadata, **once})
        return Path(path)

    def figure(self, *, heading: bool = True) -> Figure:
        """Draw it as a matplotlib figure."""
        from matplotlib.figure import Figure

        size = (4.8 if self.beside else 4.2, 0.8 + 0.34 * len(self.x)) if self.bars else (6.4, 3.6)
        figure = Figure(figsize=size)
        if self.bars:
            self._bars(figure)
        else:
            self._lines(figure)
        if heading:
            figure.axes[0].set_title(textwrap.fill(self.title, 64), loc="left" if self.bars else "center")
        if len(self.series) > 1:
            figure.axes[0].legend()
        return figure

    def _lines(self, figure: Figure) -> None:
        axis = figure.subplots()
        for (name, values), color in zip(self.series.items(), itertools.cycle(_COLORS)):
            axis.plot(range(len(self.x)), _drawn(values), "o-", label=name, color=color)
            spans = self._spans(name, range(len(self.x)))
            if spans:
                axis.vlines(*zip(*spans, strict=True), color=color, linewidth=1)
        axis.set(xlabel=self.x_label, ylabel=self.y_label, ylim=(0, None))
        axis.set_xticks(range(len(self.x)), self.x)

    def _bars(self, figure: Figure) -> None:
        if self.beside:
            axis, right = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
            right.plot(_drawn(self.beside), range(len(self.x)), "o", color=_COLORS[2])
            right.set(xlabel=self.beside_label)
            right.margins(x=0.15)
            right.grid(axis="x", alpha=0.4)
            right.locator_params(axis="x", nbins=3)
        else:
            axis = figure.subplots()
        width = 0.8 / max(1, len(self.series))
        for i, (name, values) in enumerate(self.series.items()):
            shift = (i - (len(self.series) - 1) / 2) * width
            places = [place + shift for place in range(len(self.x))]
            colors = [_COLORS[1] if place in self.marked else _COLORS[i % len(_COLORS)] for place in self.x]
            axis.barh(places, _drawn(values), width, label=name, color=colors)
            spans = self._spans(name, places)
            if spans:
                axis.hlines(*zip(*spans, strict=True), color="black", linewidth=1.5)
            if self.form:
                ends = {place: high for place, _, high in spans}
                for place, value in zip(places, values, strict=True):
                    if value is not None:
                        end = (max(value, ends.get(place, value)), place)
                        text = format(value, self.form)
                        axis.annotate(text, end, (4, 0), textcoords="offset points", verticalalignment="center")
        axis.set(xlabel=self.y_label, ylabel=self.x_label, xlim=(0, None))
        if self.form:  # room for what stands beside the longest bar
            axis.set_xlim(0, axis.get_xlim()[1] * (1.3 if self.beside else 1.2))
        axis.locator_params(axis="x", nbins=3 if self.beside else 5)
        axis.xaxis.set_major_formatter("{x:,g}")
        axis.set_yticks(range(len(self.x)), self.x)
        axis.invert_yaxis()

    def _spans(self, name: str, places: Iterable[float]) -> list[tuple[float, float, float]]:
        spans = self.ranges.get(name, ())
        return [(place, *span) for place, span in zip(places, spans, strict=False) if span is not None]


def _drawn(values: Sequence[float | None]) -> list[float]:
    return [math.nan if value is None else value for value in values]
