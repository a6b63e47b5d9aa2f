"""One plot: lines or bars over a few places on the x axis, drawn by matplotlib."""

from __future__ import annotations

import importlib.util
import math
import os
from collections.abc import Mapping, Sequence
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
            f"{str(path)!r} was asked for, but matplotlib, which draws it, is not installed: "
            "pip install 'mirrorkit[plot]'."
        )


@dataclass
class Chart:
    """What to draw. Series and ranges (lowest and highest values) hold a value or None for each place on the x axis."""

    title: str
    x: Sequence[str]  # labels of the places, which are evenly spaced
    series: Mapping[str, Sequence[float | None]]  # by name; all values from 0 on
    ranges: Mapping[str, Sequence[tuple[float, float] | None]] = field(default_factory=dict)  # by the same names
    x_label: str = ""
    y_label: str = ""
    bars: bool = False  # or lines

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write a PNG or SVG file and return its path."""
        check_plot(path)
        self.figure().savefig(path, bbox_inches="tight", dpi=120, metadata={"Title": self.title})
        return Path(path)

    def figure(self) -> Figure:
        """Draw it as a matplotlib figure."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(6.4, 3.6))
        axis = figure.subplots()
        width = 0.8 / max(1, len(self.series))
        for i, (name, values) in enumerate(self.series.items()):
            color = _COLORS[i % len(_COLORS)]
            shift = (i - (len(self.series) - 1) / 2) * width if self.bars else 0.0
            places = [place + shift for place in range(len(self.x))]
            known = [math.nan if value is None else value for value in values]
            if self.bars:
                axis.bar(places, known, width, label=name, color=color)
            else:
                axis.plot(places, known, "o-", label=name, color=color)
            spans = [(x, *span) for x, span in zip(places, self.ranges.get(name, ()), strict=False) if span is not None]
            if spans:
                axis.vlines(*zip(*spans, strict=True), color="black" if self.bars else color, linewidth=1)
        axis.set(title=self.title, xlabel=self.x_label, ylabel=self.y_label, ylim=(0, None))
        axis.set_xticks(range(len(self.x)), self.x)
        if len(self.series) > 1:
            axis.legend()
        return figure
