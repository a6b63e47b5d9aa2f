"""The table of docs/corpus.md: every net of the corpus in Keras, on one device, on two replicas and on two workers.

Run: python tests/corpus/corpus_table.py [--write docs/corpus.md] [--only NAME ...]
     python tests/corpus/corpus_table.py --jit-compile

Prints the table, and writes it into the page, between the lines that mark it; with --only, the other rows stay there.
With --jit-compile, XLA compiles the steps, on one device and two replicas of this process.
The exit code is 1 when a cell is neither equal up to rounding nor refused with the expected message.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import re
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from corpus import ENTRIES, KINDS, Cell, cells, here
from corpus_on_workers import found_on_workers
from entries import PLACES, WORKERS, Entry
from pages import put_between
from table import heading

import mirrorkit as mk
from mirrorkit.train.step import variants

BEGIN, END = "<!-- table: written by tests/corpus/corpus_table.py -->", "<!-- end of the table -->"
AGAIN = "Some rows were measured again later, with `--only`."
HEAD = ["net", "ported with", "lines", "compared with", *PLACES]
Rows = Mapping[str, Mapping[str, Cell]]


def measure(names: Sequence[str], places: Sequence[str] = PLACES) -> dict[str, dict[str, Cell]]:
    """The rows of the table."""
    on_workers = found_on_workers(names) if WORKERS in places else {}
    rows = {}
    for name in names:
        found = here(ENTRIES[name], places) | ({WORKERS: on_workers[name]} if name in on_workers else {})
        rows[name] = cells(ENTRIES[name], found)
        print(f"{name}: {'; '.join(f'{place} {cell}' for place, cell in rows[name].items())}", flush=True)
    return rows


@contextlib.contextmanager
def by_xla() -> Iterator[None]:
    """Let XLA compile each step that leaves this to mirrorkit, on any device, as `jit_compile=True` does."""
    original = variants.for_strategy

    def for_strategy(options: Any, *others: Any) -> Any:
        chosen = original(options, *others)
        return dataclasses.replace(chosen, jit_compile=True) if options.jit_compile == "auto" else chosen

    with mock.patch.object(variants, "for_strategy", for_strategy):
        yield


def failures(rows: Rows) -> list[tuple[str, str]]:
    """The cells that are neither equal nor refused as expected; and rows that are right but marked as open."""
    red = {(name, place) for name, row in rows.items() for place, cell in row.items() if cell.is_red}
    closed = {(name, "is no longer open") for name in rows if ENTRIES[name].open and name not in {n for n, _ in red}}
    return sorted({(name, place) for name, place in red if not ENTRIES[name].open} | closed)


def compared_with(entry: Entry) -> str:
    """What the reference is, in words."""
    if entry.refused and set(entry.refused_on) == set(PLACES):
        return "-"
    if entry.draws:
        return "N shards with the same seeds"
    if entry.per_shard:
        return "Keras; N shards"
    return entry.reference or "Keras"


def as_markdown(rows: Rows, kept: Mapping[str, Sequence[str]] | None = None) -> str:
    """A section for each kind, and what the refusals say; `kept` are lines of the page for other rows."""
    lines = {name: list(found) for name, found in (kept or {}).items()} | {n: _lines(n, row) for n, row in rows.items()}
    sections = []
    for kind in KINDS:
        names = [name for name in ENTRIES if name in lines and ENTRIES[name].kind == kind]
        sections.append(f"### {kind[0].upper()}{kind[1:]}\n\n{_table(HEAD, [lines[name][0] for name in names])}")
    said = [line for name in ENTRIES for line in lines.get(name, [])[1:]]
    return "\n\n".join([*sections, "### What the refusals say\n\n" + "\n".join(said)])


def _lines(name: str, row: Mapping[str, Cell]) -> list[str]:
    """The row of the table, and those of the list of refusals."""
    entry = ENTRIES[name]
    changed = "+{} -{}".format(*entry.lines_changed)
    columns = [name, f"`{entry.way}`", changed, compared_with(entry), *map(str, row.values())]
    lines = [f"| {' | '.join(columns)} |"]
    for text in dict.fromkeys(cell.refusal for cell in row.values() if cell.refusal):
        said = re.sub(r"\{\{.*?\}\} ?", "", text).replace("](", "] (")  # no names of nodes, no links
        lines.append(f"- **{name}**: {said.replace(chr(10), ' ')}")
    if entry.open:
        lines.append(f"- **{name}**: open: {entry.open}")
    return lines


def lines_of(page: str) -> dict[str, list[str]]:
    """The lines of a page for each entry."""
    lines: dict[str, list[str]] = {}
    for line in page.splitlines():
        name = re.split(r" \| |\*\*: ", line.removeprefix("| ").removeprefix("- **"))[0]
        if line.startswith(("| ", "- **")) and name in ENTRIES:
            lines.setdefault(name, []).append(line)
    return lines


def with_rows_again(page: str) -> str:
    """The heading of a page, which is that of the run of all rows."""
    head = page.split(BEGIN)[1].split("###")[0].replace(AGAIN, "").strip()
    return f"{head}\n{AGAIN}"


def _table(head: Sequence[str], lines: Sequence[str]) -> str:
    return "\n".join([f"| {' | '.join(head)} |", "|" + " --- |" * len(head), *lines])


def main() -> int:
    """Measure, print, write; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, help="the page to put the table into")
    parser.add_argument("--only", nargs="+", choices=sorted(ENTRIES), metavar="NAME", help="rows to measure")
    parser.add_argument("--jit-compile", action="store_true", help="let XLA compile the steps")
    arguments = parser.parse_args()
    mk.devices.split_cpu(4)
    warnings.filterwarnings("ignore", message="A global batch of")  # uneven shares are what this is about
    places = [place for place in PLACES if place != WORKERS or not arguments.jit_compile]
    with by_xla() if arguments.jit_compile else contextlib.nullcontext():
        rows = measure(arguments.only or list(ENTRIES), places)
    red = failures(rows)
    no_lines: dict[str, list[str]] = {}
    command = "python tests/corpus/corpus_table.py" + " --jit-compile" * arguments.jit_compile
    head, kept = heading(len(rows) * len(places), command), no_lines
    if arguments.write and arguments.only:
        page = arguments.write.read_text()
        head, kept = with_rows_again(page), lines_of(page)
    text = f"{head}\n\n{as_markdown(rows, kept)}"
    print(f"\n{text}\n\n{len(red)} cells are not as they should be{': ' if red else '.'}{red or ''}")
    if arguments.write:
        put_between(arguments.write, text, BEGIN, END)
    return 1 if red else 0


if __name__ == "__main__":
    sys.exit(main())
