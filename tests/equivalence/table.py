"""The table of docs/equivalence-table.md: every feature on every strategy and number of replicas beside its control.

Run: python tests/equivalence/table.py [--write docs/equivalence-table.md] [--only NAME ...] [--processes N]

Prints the table, and writes it into the page, between the lines that mark it. The exit code is 1 when a cell differs
by more than rounding explains. With $MIRRORKIT_TEST_DEVICE=gpu the replicas are parts of the first GPU, and there
are no workers.
"""

from __future__ import annotations

import argparse
import math
import os
import resource
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
sys.path.append(str(Path(__file__).resolve().parents[1]))  # where device_choice.py and pages.py are

import device_choice
import plain
import tensorflow as tf
from cases import CASES, Case
from cells import OF_GRADIENT, Outcome, bar, difference, halves, train
from on_workers import disagreeing, train_on_workers
from pages import put_between

import mirrorkit as mk
from mirrorkit._keras import keras

BEGIN, END = "<!-- table: written by tests/equivalence/table.py -->", "<!-- end of the table -->"
HERE = [("one_device", 1), *((kind, n) for kind in ("mirrored", "central_storage") for n in (1, 2, 3, 4))]
LARGE = [("layout", 1), ("layout", 2), *(("shard_optimizer", n) for n in (2, 3, 4))]  # for models larger than a device
VARIABLES = [("with variables", n) for n in (1, 2, 3)]  # Keras's step as a model takes it that is no function
WORKERS = [("multi_worker", 2), ("multi_worker", 3)] if device_choice.DEVICE == "cpu" else []  # NCCL: one of a GPU
WHERE = [*HERE, *LARGE, *VARIABLES, *WORKERS]
_DRAW = {"Dropout", "augmentation layers", "transformer"}
_WITH_VARIABLES = {"weighted_metrics", "loss_weights", *OF_GRADIENT}  # the other options are those of functions


class Cell(NamedTuple):
    """How far a case is from its reference, and how far the reference is from itself in another order.

    `disagreeing` names the values that do not have the same bits on all workers; `error` says why nothing was measured.
    """

    difference: float
    control: float
    disagreeing: Sequence[str] = ()
    error: str = ""

    @property
    def is_red(self) -> bool:
        """Whether rounding does not explain the difference, or the workers hold different bits."""
        return bool(self.disagreeing or self.error) or not self.difference <= bar(self.control)

    def __str__(self) -> str:
        """The difference, and the control in parentheses."""
        text = self.error or f"{self.difference:.1e} ({self.control:.1e})"
        if self.disagreeing:
            text += f" workers differ in {self.disagreeing[0]}"
        return f"**{text}**" if self.is_red else text


Row = dict[tuple[str, int], Cell]


def applies(case: Case, kind: str) -> bool:
    """Whether a case can be trained there at all, to the same numbers.

    In 16 bits a gradient is rounded otherwise with variables, as that of a mean over the share: 4e-4 on three replicas.
    And random layers draw other numbers there than in a function: they follow from a seed of the step's own.
    """
    if kind != "with variables":
        return True
    return case.options.keys() <= _WITH_VARIABLES and case.policy == "float32" and case.name not in _DRAW


class References:
    """What a case must come to; each is trained once."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._made: dict[int, tuple[Outcome, float]] = {}

    def cell(self, kind: str, replicas: int, found: Outcome) -> Cell:
        """Compare what `replicas` under a strategy came to."""
        shards = replicas if self._case.per_shard else 1
        if shards not in self._made:
            expected = plain.train(self._case, shards)
            self._made[shards] = expected, difference(plain.train(self._case, shards, reordered=True), expected)
        expected, control = self._made[shards]
        return Cell(difference(found, expected), control, disagreeing(found) if kind == "multi_worker" else ())


def cells(
    case: Case,
    where: Sequence[tuple[str, int]],
    train_on: Callable[[Case, str, int], Outcome],
    references: References | None = None,
) -> Iterator[tuple[tuple[str, int], Cell]]:
    """Measure a row: `train_on(case, kind, replicas)` trains, in this process or in others."""
    references = references or References(case)
    for kind, replicas in where:
        if applies(case, kind):
            yield (kind, replicas), references.cell(kind, replicas, train_on(case, kind, replicas))


def train_here(case: Case, kind: str, replicas: int) -> Outcome:
    """Train on virtual CPU devices of this process; with a layout on two for each replica."""
    if kind == "layout":
        layout = halves(case, replicas)
        return train(case, layout.strategy(), layout=layout)
    if kind == "shard_optimizer":
        return train(case, mk.strategy.create("mirrored", devices=device_choice.first(replicas)), shard_optimizer=True)
    if kind == "with variables":
        return train(case, mk.strategy.create("mirrored", devices=device_choice.first(replicas)), with_variables=True)
    return train(case, mk.strategy.create(kind, devices=device_choice.first(replicas)))


class Trainer:
    """Trains cases wherever a cell of the table asks for: the workers once for all cases, at the beginning.

    Args:
        names: the cases.
        where: kinds and numbers of replicas.
    """

    def __init__(self, names: Sequence[str], where: Sequence[tuple[str, int]]) -> None:
        self._where = where
        self._of_workers = {n: train_on_workers(names, n) for kind, n in where if kind == "multi_worker"}

    def __call__(self, case: Case, kind: str, replicas: int) -> Outcome:
        """Return what the case came to."""
        return self._of_workers[replicas][case.name] if kind == "multi_worker" else train_here(case, kind, replicas)

    def rows(self, names: Sequence[str], processes: int) -> Iterator[tuple[str, Row]]:
        """Measure each case everywhere, so many at a time."""
        if processes == 1:
            yield from ((name, self.row(name)) for name in names)
            return
        with ProcessPoolExecutor(processes, get_context("spawn"), device_choice.split) as pool:
            yield from zip(names, pool.map(self.row, names), strict=True)

    def row(self, name: str) -> Row:
        """Measure a case everywhere."""
        warnings.filterwarnings("ignore", message="A global batch of")  # uneven shares are what this is about
        case, references, row = CASES[name], References(CASES[name]), {}
        for place in self._where:
            try:
                row |= cells(case, [place], self, references)
            except Exception as error:  # whatever it is, the other cells are measured
                traceback.print_exc()
                row[place] = Cell(math.inf, math.nan, error=f"{type(error).__name__}: {error}".splitlines()[0][:120])
        return row


def as_markdown(rows: dict[str, Row], where: Sequence[tuple[str, int]]) -> str:
    """One section per strategy: features down, numbers of replicas across."""
    sections = []
    for kind in dict.fromkeys(kind for kind, _ in where):
        numbers = [n for k, n in where if k == kind]
        what = "worker" if kind == "multi_worker" else "replica"
        head = ["feature", "reference", *(f"{n} {what}{'s' if n > 1 else ''}" for n in numbers)]
        lines = [head, ["---"] * len(head)]
        for name, row in rows.items():
            reference = "N shards" if CASES[name].per_shard else "whole batch"
            lines.append([name, reference, *(str(row.get((kind, n), "-")) for n in numbers)])
        table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        sections.append(f"### {kind}\n\n{table}")
    return "\n\n".join(sections)


def heading(count: int, command: str) -> str:
    """Date, machine, versions, cost and command."""
    versions = f"Python {sys.version.split()[0]}, TensorFlow {tf.__version__}, Keras {keras.__version__}"
    machine = f"{os.cpu_count()} CPU cores ({os.uname().machine}, {os.uname().sysname})"
    machine += f"; {device_choice.what()}"
    machine += "; workers are processes that talk over loopback" if WORKERS else ""
    used = [resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cost = f"{count} cells, {sum(u.ru_utime + u.ru_stime for u in used) / 60:.0f} minutes of CPU time"
    return (
        f"{time.strftime('%Y-%m-%d')}: {machine}, {versions}, mirrorkit {mk.__version__}; {cost}.\nCommand: `{command}`"
    )


def main() -> int:
    """Measure, print, write; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, help="the page to put the table into")
    parser.add_argument("--processes", type=int, default=1, help="that train, each its rows")
    parser.add_argument("--only", nargs="+", choices=sorted(CASES), metavar="NAME", help="rows to measure")
    arguments = parser.parse_args()
    if arguments.write and arguments.only:
        parser.error("--write puts the whole table into the page; leave out --only")
    device_choice.split()
    rows: dict[str, Row] = {}
    names = arguments.only or list(CASES)
    for name, row in Trainer(names, WHERE).rows(names, arguments.processes):
        rows[name] = row
        print(f"{name}: {', '.join(f'{kind} {n}: {cell}' for (kind, n), cell in row.items())}", flush=True)
    red = [(name, where) for name, row in rows.items() for where, cell in row.items() if cell.is_red]
    head = heading(sum(map(len, rows.values())), "python tests/equivalence/table.py")
    text = f"{head}\n\n{as_markdown(rows, WHERE)}"
    print(f"\n{text}\n\n{len(red)} cells differ by more than rounding explains{': ' if red else '.'}{red or ''}")
    if arguments.write:
        put_between(arguments.write, text, BEGIN, END)
    return 1 if red else 0


if __name__ == "__main__":
    sys.exit(main())
