"""The table of docs/equivalence.md: every feature on every strategy and number of replicas beside its control.

Run: python tests/equivalence/table.py [--write docs/equivalence.md] [--only NAME ...]

Prints the table, and writes it into the page, between the lines that mark it. The exit code is 1 when a cell differs
by more than rounding explains.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import plain
import tensorflow as tf
from cases import CASES, Case
from cells import Outcome, available, bar, difference, train

import mirrorkit as mk
from mirrorkit._keras import keras

BEGIN, END = "<!-- table: written by tests/equivalence/table.py -->", "<!-- end of the table -->"
WHERE = [("one_device", 1), *((kind, n) for kind in ("mirrored", "central_storage") for n in (1, 2, 3, 4))]


class Cell(NamedTuple):
    """How far a case is from its reference, and how far the reference is from itself in another order."""

    difference: float
    control: float

    @property
    def is_red(self) -> bool:
        """Whether rounding does not explain the difference."""
        return not self.difference <= bar(self.control)

    def __str__(self) -> str:
        """The difference, and the control in parentheses."""
        text = f"{self.difference:.1e} ({self.control:.1e})"
        return f"**{text}**" if self.is_red else text


class References:
    """What a case must come to; each is trained once."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._made: dict[int, tuple[Outcome, float]] = {}

    def cell(self, found: Outcome, replicas: int) -> Cell:
        """Compare what `replicas` came to."""
        shards = replicas if self._case.per_shard else 1
        if shards not in self._made:
            expected = plain.train(self._case, shards)
            self._made[shards] = expected, difference(plain.train(self._case, shards, reordered=True), expected)
        expected, control = self._made[shards]
        return Cell(difference(found, expected), control)


def cells(
    case: Case, where: Sequence[tuple[str, int]], train_on: Callable[[Case, str, int], Outcome]
) -> Iterator[tuple[tuple[str, int], Cell]]:
    """Measure a row: `train_on(case, kind, replicas)` trains, in this process or in others."""
    references = References(case)
    for kind, replicas in where:
        yield (kind, replicas), references.cell(train_on(case, kind, replicas), replicas)


def train_here(case: Case, kind: str, replicas: int) -> Outcome:
    """Train on virtual CPU devices of this process."""
    return train(case, mk.strategy.create(kind, devices=f"cpu:{replicas}"))


def as_markdown(rows: dict[str, dict[tuple[str, int], Cell]], where: Sequence[tuple[str, int]]) -> str:
    """One section per strategy: features down, numbers of replicas across."""
    sections = []
    for kind in dict.fromkeys(kind for kind, _ in where):
        numbers = [n for k, n in where if k == kind]
        head = ["feature", "reference", *(f"{n} replica{'s' if n > 1 else ''}" for n in numbers)]
        lines = [head, ["---"] * len(head)]
        for name, row in rows.items():
            reference = "N shards" if CASES[name].per_shard else "whole batch"
            lines.append([name, reference, *(str(row[kind, n]) for n in numbers)])
        table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        sections.append(f"### {kind}\n\n{table}")
    return "\n\n".join(sections)


def heading(count: int, command: str) -> str:
    """Date, machine, versions, cost and command."""
    versions = f"Python {sys.version.split()[0]}, TensorFlow {tf.__version__}, Keras {keras.__version__}"
    machine = f"{os.cpu_count()} CPU cores ({os.uname().machine}, {os.uname().sysname}) as four virtual devices"
    cost = f"{count} cells, {time.process_time() / 60:.0f} minutes of CPU time"
    return (
        f"{time.strftime('%Y-%m-%d')}: {machine}, {versions}, mirrorkit {mk.__version__}; {cost}.\nCommand: `{command}`"
    )


def put_between(page: Path, begin: str, end: str, text: str) -> None:
    """Replace what stands between two lines of a page."""
    before, found, rest = page.read_text().partition(begin)
    _, also_found, after = rest.partition(end)
    if not (found and also_found):
        raise SystemExit(f"{page} lacks the lines {begin!r} and {end!r}, between which the table belongs.")
    page.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}")


def main() -> int:
    """Measure, print, write; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, help="the page to put the table into")
    parser.add_argument("--only", nargs="+", choices=sorted(CASES), metavar="NAME", help="rows to measure")
    arguments = parser.parse_args()
    if arguments.write and arguments.only:
        parser.error("--write puts the whole table into the page; leave out --only")
    mk.devices.split_cpu(4)
    warnings.filterwarnings("ignore", message="A global batch of")  # uneven shares are what this is about
    rows: dict[str, dict[tuple[str, int], Cell]] = {}
    for name in arguments.only or CASES:
        if not available(CASES[name]):
            print(f"{name}: not available in this version", flush=True)
            continue
        row = dict(cells(CASES[name], WHERE, train_here))
        rows[name] = row
        print(f"{name}: {', '.join(f'{kind} {n}: {cell}' for (kind, n), cell in row.items())}", flush=True)
    red = [(name, where) for name, row in rows.items() for where, cell in row.items() if cell.is_red]
    head = heading(len(rows) * len(WHERE), "python tests/equivalence/table.py")
    text = f"{head}\n\n{as_markdown(rows, WHERE)}"
    print(f"\n{text}\n\n{len(red)} cells differ by more than rounding explains{': ' if red else '.'}{red or ''}")
    if arguments.write:
        put_between(arguments.write, BEGIN, END, text)
    return 1 if red else 0


if __name__ == "__main__":
    sys.exit(main())
