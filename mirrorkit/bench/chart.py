"""One picture: lines or bars over a few places on the x axis; PNG by matplotlib, SVG by the few lines below.

```python
chart = Chart("Scaling", x=["1", "2", "4"], series={"strong": [100.0, 190.0, 350.0]}, y_label="images/s")
chart.save("scaling.svg")
```
"""

from __future__ import annotations

import importlib.util
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

# Okabe and Ito's colours, which colour-blind people can tell apart: https://jfly.uni-koeln.de/color/
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
PICTURES = (".png", ".svg")
_WIDTH, _HEIGHT = 640, 360
_LEFT, _RIGHT, _TOP, _BOTTOM = 80, 16, 44, 84  # of the area between the axes


@dataclass
class Chart:
    """What to draw.

    Attributes:
        title: above the picture.
        x: a label for each place, evenly spaced.
        series: for each name a value for each place, or None; all from 0 on.
        ranges: for a name, the (lowest, highest) value at each place, drawn as a line through the point.
        x_label, y_label: along the axes.
        bars: bars instead of lines.
    """

    title: str
    x: Sequence[str]
    series: Mapping[str, Sequence[float | None]]
    ranges: Mapping[str, Sequence[tuple[float, float] | None]] = field(default_factory=dict)
    x_label: str = ""
    y_label: str = ""
    bars: bool = False

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the picture and return its path; ".png" becomes ".svg" where matplotlib is not installed."""
        path = Path(path)
        if path.suffix.lower() == ".png" and importlib.util.find_spec("matplotlib") is None:
            path = path.with_suffix(".svg")
        if path.suffix.lower() == ".svg":
            path.write_text(self.svg(), encoding="utf-8")
        else:
            self._save_with_matplotlib(path)
        return path

    def _save_with_matplotlib(self, path: Path) -> None:
        from matplotlib.figure import Figure  # pip install 'mirrorkit[plot]'

        figure = Figure(figsize=(_WIDTH / 100, _HEIGHT / 100))
        axis = figure.subplots()
        places = range(len(self.x))
        width = 0.8 / max(1, len(self.series))
        for i, (name, values) in enumerate(self.series.items()):
            color = _COLORS[i % len(_COLORS)]
            shift = (i - (len(self.series) - 1) / 2) * width if self.bars else 0.0
            at = [place + shift for place in places]
            known = [math.nan if value is None else value for value in values]
            if self.bars:
                axis.bar(at, known, width, label=name, color=color)
            else:
                axis.plot(at, known, "o-", label=name, color=color)
            for place, span in zip(at, self.ranges.get(name, ()), strict=False):
                if span is not None:
                    axis.plot([place, place], span, color="black" if self.bars else color, linewidth=1)
        axis.set(title=self.title, xlabel=self.x_label, ylabel=self.y_label, ylim=(0, None))
        axis.set_xticks(list(places), self.x)
        if len(self.series) > 1:
            axis.legend()
        figure.savefig(path, bbox_inches="tight", dpi=120)

    def svg(self) -> str:
        """Return the picture as SVG."""
        ticks = self._ticks()
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" '
            f'height="{_HEIGHT}" font-family="sans-serif" font-size="12">',
            f"<title>{escape(self.title)}</title>",
            '<rect width="100%" height="100%" fill="white"/>',
            _text(_WIDTH / 2, 20, self.title, size=14),
            _text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - _BOTTOM + 38, self.x_label),
            _text(16, (_TOP + _HEIGHT - _BOTTOM) / 2, self.y_label, turned=True),
        ]
        for tick in ticks:
            y = self._y(tick, ticks[-1])
            parts.append(_line(_LEFT, y, _WIDTH - _RIGHT, y, "#dddddd"))
            parts.append(_text(_LEFT - 6, y + 4, f"{tick:,.10g}", anchor="end"))
        parts += [_text(self._x(i), _HEIGHT - _BOTTOM + 18, label) for i, label in enumerate(self.x)]
        for i, name in enumerate(self.series):
            parts += self._drawn(i, name, ticks[-1])
            if len(self.series) > 1:
                x, y = _LEFT + 10 + (i % 3) * 185, _HEIGHT - _BOTTOM + 56 + 18 * (i // 3)
                parts.append(f'<rect x="{x}" y="{y - 9}" width="10" height="10" fill="{_COLORS[i % len(_COLORS)]}"/>')
                parts.append(_text(x + 16, y, name, anchor="start"))
        parts.append(_line(_LEFT, _HEIGHT - _BOTTOM, _WIDTH - _RIGHT, _HEIGHT - _BOTTOM, "black"))
        return "\n".join([*parts, "</svg>\n"])

    def _drawn(self, index: int, name: str, top: float) -> list[str]:
        color = _COLORS[index % len(_COLORS)]
        step = self._x(1) - self._x(0)
        width = 0.8 * step / len(self.series)
        shift = (index - (len(self.series) - 1) / 2) * width if self.bars else 0.0
        points = [(self._x(i) + shift, self._y(v, top)) for i, v in enumerate(self.series[name]) if v is not None]
        if self.bars:
            floor = _HEIGHT - _BOTTOM
            out = [
                f'<rect x="{x - width / 2:.1f}" y="{y:.1f}" width="{width:.1f}" height="{floor - y:.1f}" '
                f'fill="{color}"/>'
                for x, y in points
            ]
        else:
            way = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
            out = [f'<polyline points="{way}" fill="none" stroke="{color}" stroke-width="2"/>']
            out += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{color}"/>' for x, y in points]
        for i, span in enumerate(self.ranges.get(name, ())):
            if span is not None:
                x = self._x(i) + shift
                out.append(_line(x, self._y(span[0], top), x, self._y(span[1], top), "black" if self.bars else color))
        return out

    def _x(self, place: int) -> float:
        return _LEFT + (place + 0.5) * (_WIDTH - _LEFT - _RIGHT) / max(1, len(self.x))

    def _y(self, value: float, top: float) -> float:
        return _HEIGHT - _BOTTOM - value / top * (_HEIGHT - _TOP - _BOTTOM)

    def _ticks(self) -> list[float]:
        """Round values from 0 to above the largest one."""
        values = [value for values in self.series.values() for value in values if value is not None]
        values += [span[1] for spans in self.ranges.values() for span in spans if span is not None]
        largest = max([value for value in values if math.isfinite(value)], default=0.0) or 1.0
        rough = largest / 5
        magnitude = 10 ** math.floor(math.log10(rough))
        step = next(factor * magnitude for factor in (1, 2, 2.5, 5, 10) if factor * magnitude >= rough * (1 - 1e-9))
        return [step * i for i in range(math.ceil(largest / step - 1e-9) + 1)]


def _text(x: float, y: float, text: str, *, anchor: str = "middle", size: int = 12, turned: bool = False) -> str:
    turn = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if turned else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor={quoteattr(anchor)} font-size="{size}"{turn}>{escape(text)}</text>'
    )


def _line(x1: float, y1: float, x2: float, y2: float, color: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{color}"/>'
