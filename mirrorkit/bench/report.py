"""A finished benchmark: rows for people, for a JSON file and for a picture."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from mirrorkit.bench.chart import PICTURES, Chart
from mirrorkit.bench.machine import in_a_line
from mirrorkit.errors import MirrorkitError


class Column(NamedTuple):
    """A column of the table: the key in the rows, the heading, and a format such as ",.0f"."""

    key: str
    heading: str
    form: str = ""


@dataclass
class Report:
    """What a benchmark found. `str(report)` is a table.

    Attributes:
        benchmark: its name.
        title: what was measured, on what.
        columns: of the table; a row without a column's key leaves it empty.
        rows: figures by key, `values` among them: those of every repeat. A row with `error` was not measured.
        notes: how to read the figures.
        about: machine, versions, command and time.
        chart: the picture.
    """

    benchmark: str
    title: str
    columns: Sequence[Column]
    rows: list[dict[str, Any]]
    chart: Chart
    notes: Sequence[str] = ()
    about: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        """The title, the machine, the table and the notes."""
        head = [self.title, *([in_a_line(self.about)] if self.about else [])]
        return "\n".join([*head, table(self.columns, self.rows), *self.notes])

    def save_json(self, path: str | os.PathLike[str]) -> Path:
        """Write all figures, and what is to be known of the machine; returns the path."""
        whole = {"benchmark": self.benchmark, "title": self.title, "about": self.about, "rows": self.rows}
        path = Path(path)
        path.write_text(json.dumps({**whole, "notes": list(self.notes)}, indent=1) + "\n")
        return path

    def save_picture(self, path: str | os.PathLike[str]) -> Path:
        """Write the picture: PNG where matplotlib is installed, or SVG; returns the path."""
        return self.chart.save(path)


def check_places(json: str | None, picture: str | None) -> None:
    """Refuse, before the measurement, files that could not be written after it.

    Raises:
        MirrorkitError: the folder is not there, the place is a folder, or the picture is of another kind.
    """
    for path in filter(None, (json, picture)):
        if Path(path).is_dir() or not Path(path).parent.is_dir():
            raise MirrorkitError(f"{path!r} cannot be written: name a file in a folder that is there.")
    if picture and Path(picture).suffix.lower() not in PICTURES:
        raise MirrorkitError(f"{picture!r} cannot be drawn: name a file that ends in {' or '.join(PICTURES)}.")


def table(columns: Sequence[Column], rows: Sequence[dict[str, Any]]) -> str:
    """Lines of aligned columns: words to the left, figures to the right; an error ends its row."""
    cells = [[format(row[c.key], c.form) if row.get(c.key) is not None else "" for c in columns] for row in rows]
    widths = [max(len(c.heading), *(len(line[i]) for line in cells), 0) for i, c in enumerate(columns)]
    lines = []
    for row, line in zip([{}, *rows], [[c.heading for c in columns], *cells], strict=True):
        aligned = [
            text.rjust(width) if column.form else text.ljust(width)
            for text, width, column in zip(line, widths, columns, strict=True)
        ]
        error = f"  {row['error'].splitlines()[0]}" if "error" in row else ""
        lines.append(("  ".join(aligned).rstrip() + error).rstrip())
    return "\n".join(lines)


def summary(values: Sequence[float]) -> dict[str, float]:
    """Median, best (largest), and the spread: largest less smallest, as a share of the median."""
    median = statistics.median(values)
    return {"median": median, "best": max(values), "spread": (max(values) - min(values)) / median}
