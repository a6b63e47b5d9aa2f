"""The result of a benchmark, a table, a JSON file and a plot; and what every script offers on its command line."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from harness.chart import Chart, check_plot
from harness.machine import about, in_a_line
from mirrorkit.errors import FileError, MirrorkitError


class Column(NamedTuple):
    """A column of the table: the key in the rows, the heading, and a format such as ",.0f"."""

    key: str
    heading: str
    form: str = ""


SPEED_COLUMNS = (
    *(Column("median", "examples/s", ",.0f"), Column("best", "best", ",.0f")),
    *(Column("n", "n", "d"), Column("spread", "spread", ".0%")),
)
SECONDS_COLUMNS = (
    *(Column("best", "fastest, s", ".3f"), Column("median", "median", ".3f")),
    *(Column("n", "n", "d"), Column("spread", "spread", ".0%")),
)


@dataclass
class Report:
    """What a benchmark found. `str(report)` is a table.

    Attributes:
        benchmark: its name.
        title: what was measured, on what.
        columns: the table's columns; a row without a column's key leaves it empty.
        rows: figures by key; `values` holds those of every repeat. A row with `error` was not measured.
        notes: how to read the figures.
        about: machine, versions, command and time.
        chart: the plot.
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
        """Write all figures and the facts about the machine, in one format for all benchmarks; return the path."""
        whole = {"benchmark": self.benchmark, "title": self.title, "about": self.about, "rows": self.rows}
        path = Path(path)
        path.write_text(json.dumps({**whole, "notes": list(self.notes)}, indent=1) + "\n")
        return path

    def save_plot(self, path: str | os.PathLike[str]) -> Path:
        """Write the plot, a PNG or SVG file (needs matplotlib); returns the path."""
        return self.chart.save(path)


def check_places(json: str | None, plot: str | None) -> None:
    """Refuse, before the measurement, files that could not be written after it."""
    for path in filter(None, (json, plot)):
        if Path(path).is_dir() or not Path(path).parent.is_dir():
            raise FileError(f"{path!r} cannot be written: name a file in a folder that exists.")
    if plot:
        check_plot(plot)


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


def figures(
    values: Sequence[float],
    error: str | None = None,
    input_rates: Sequence[float] | None = None,
    *,
    smaller_is_better: bool = False,
) -> dict[str, Any]:
    """The part of a row that sums up its measurements, or says why there are none.

    Best is the largest value, or the smallest; spread is largest less smallest, as a share of the median. The workers'
    input rates are in it where they were measured.
    """
    if error is not None:
        return {"error": error}
    median = statistics.median(values)
    spread = (max(values) - min(values)) / median if median else 0.0
    best = min(values) if smaller_is_better else max(values)
    found = {"values": values, "n": len(values), "median": median, "best": best, "spread": spread}
    return found if input_rates is None else {**found, "input_rates": list(input_rates)}


def span(row: dict[str, Any]) -> tuple[float, float] | None:
    """The smallest and the largest value of a row; None where it was not measured."""
    return (min(row["values"]), max(row["values"])) if "values" in row else None


def parser_of(description: str | None) -> argparse.ArgumentParser:
    """Return the parser of a script whose docstring is `description`, with --json and --plot."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", help="write all figures there")
    parser.add_argument("--plot", metavar="FILE", help="PNG or SVG (needs matplotlib)")
    return parser


def numbers(text: str) -> list[int]:
    """Read an argument such as "1,2,4"."""
    return [int(part) for part in text.split(",")]


def names(text: str) -> list[str]:
    """Read an argument such as "mnist_cnn,resnet20"."""
    return text.split(",")


def parsed(parser: argparse.ArgumentParser) -> Any:
    """Parse the command line; files that could not be written are wrong arguments."""
    options = parser.parse_args()
    try:
        check_places(options.json, options.plot)
    except MirrorkitError as error:
        parser.error(str(error))
    return options


@contextlib.contextmanager
def errors_in_a_line() -> Iterator[None]:
    """End the script with the message of a `MirrorkitError`, without a traceback."""
    try:
        yield
    except MirrorkitError as error:
        sys.exit(f"{Path(sys.argv[0]).name}: {error}")


def report_of(
    benchmark: str,
    title: str,
    columns: Sequence[Column],
    rows: list[dict[str, Any]],
    *,
    unit: str,
    notes: Sequence[str] = (),
    packages: Sequence[str] = (),
) -> Report:
    """Return a report whose plot has a bar for each row, which the first column names.

    `unit` says what the medians are; versions of `packages` stand beside those of mirrorkit and TensorFlow.
    """
    names = [str(row[columns[0].key]) for row in rows]
    medians, ranges = {unit: [row.get("median") for row in rows]}, {unit: [span(row) for row in rows]}
    chart = Chart(title, names, medians, ranges, y_label=f"{unit} (median, range)", bars=True)
    return Report(benchmark, title, columns, rows, chart, notes, about(*packages))


def present(report: Report, options: argparse.Namespace) -> None:
    """Print the report, and write the files that were asked for."""
    print(report)
    if options.json:
        print(f"figures: {report.save_json(options.json)}")
    if options.plot:
        print(f"plot: {report.save_plot(options.plot)}")
