"""The table of docs/corpus.md: every net of the corpus in Keras, on one device, on two replicas and on two workers.

Run: python tests/corpus/corpus_table.py [--write docs/corpus.md] [--only NAME ...]

Prints the table, and writes it into the page, between the lines that mark it. The exit code is 1 when a cell is neither
equal within rounding nor refused in the words expected.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

from corpus import ENTRIES, KINDS, Cell, cells, here
from corpus_on_workers import found_on_workers
from entries import PLACES, WORKERS, Entry
from table import heading, put_between

import mirrorkit as mk

BEGIN, END = "<!-- table: written by tests/corpus/corpus_table.py -->", "<!-- end of the table -->"
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


def compared_with(entry: Entry) -> str:
    """What the reference is, in words."""
    if entry.refused and set(entry.refused_on) == set(PLACES):
        return "-"
    if entry.draws:
        return "N shards with the same seeds"
    if entry.per_shard:
        return "Keras; N shards"
    return entry.reference or "Keras"


def as_markdown(rows: Rows) -> str:
    """A section for each kind; and what the refusals say."""
    sections = []
    for kind in KINDS:
        lines = [HEAD, ["---"] * len(HEAD)]
        for name in (name for name in rows if ENTRIES[name].kind == kind):
            entry = ENTRIES[name]
            changed = "+{} -{}".format(*entry.lines_changed)
            lines.append([name, f"`{entry.way}`", changed, compared_with(entry), *map(str, rows[name].values())])
        sections.append(f"### {kind.capitalize()}\n\n{_table(lines)}")
    refusals = [["net", "what the error says"], ["---"] * 2]
    for name, row in rows.items():
        for text in dict.fromkeys(cell.refusal for cell in row.values() if cell.refusal):
            refusals.append([name, text.replace("|", "/").replace("\n", " ")])
    return "\n\n".join([*sections, f"### What the refusals say\n\n{_table(refusals)}"])


def _table(lines: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> int:
    """Measure, print, write; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, help="the page to put the table into")
    parser.add_argument("--only", nargs="+", choices=sorted(ENTRIES), metavar="NAME", help="rows to measure")
    arguments = parser.parse_args()
    if arguments.write and arguments.only:
        parser.error("--write puts the whole table into the page; leave out --only")
    mk.devices.split_cpu(4)
    warnings.filterwarnings("ignore", message="A global batch of")  # uneven shares are what this is about
    rows = measure(arguments.only or list(ENTRIES))
    red = [(name, place) for name, row in rows.items() for place, cell in row.items() if cell.is_red]
    head = heading(len(rows) * len(PLACES), "python tests/corpus/corpus_table.py")
    text = f"{head}\n\n{as_markdown(rows)}"
    print(f"\n{text}\n\n{len(red)} cells are not as they should be{': ' if red else '.'}{red or ''}")
    if arguments.write:
        put_between(arguments.write, BEGIN, END, text)
    return 1 if red else 0


if __name__ == "__main__":
    sys.exit(main())
