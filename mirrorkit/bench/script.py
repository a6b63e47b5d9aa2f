"""What every benchmark offers as a script: where its figures and its plot go, told before it measures."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from mirrorkit.bench.chart import Chart
from mirrorkit.bench.machine import about
from mirrorkit.bench.report import Column, Report, check_places, span
from mirrorkit.errors import MirrorkitError


def parser_of(description: str | None) -> argparse.ArgumentParser:
    """Return the parser of a script whose docstring is `description`, with --json and --plot."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_places(parser)
    return parser


def add_places(parser: argparse.ArgumentParser) -> None:
    """Add --json and --plot."""
    parser.add_argument("--json", metavar="FILE", help="write all figures there")
    parser.add_argument("--plot", metavar="FILE", help="PNG or SVG (needs matplotlib)")


def parsed(parser: argparse.ArgumentParser) -> Any:
    """Parse the command line; files that could not be written are wrong arguments."""
    options = parser.parse_args()
    try:
        check_places(options.json, options.plot)
    except MirrorkitError as error:
        parser.error(str(error))
    return options


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
