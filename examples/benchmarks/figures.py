"""Make the tables and pictures of the documentation from the runs that docs/figures keeps.

    python examples/benchmarks/figures.py --write      # --check says what differs, and changes nothing

A table stands between `<!-- figures: NAME -->` and `<!-- end of figures -->` on a page; a picture is
docs/figures/NAME.svg (needs matplotlib). To measure again, run a benchmark with `--json docs/figures/NAME.json`; its
command stands beside its table.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable
from pathlib import Path

from stored import equality, first_update, gpu, kinds, table_updates, tables
from stored.pictures import PICTURES, save, wrong_in
from stored.runs import FOLDER, read

ROOT = FOLDER.parents[1]
BLOCKS = {
    **tables.BLOCKS,
    **kinds.BLOCKS,
    **first_update.BLOCKS,
    **table_updates.BLOCKS,
    **gpu.BLOCKS,
    **equality.BLOCKS,
}
RUNS = sorted({name for _, names in BLOCKS.values() for name in names})
BLOCK = re.compile(r"(<!-- figures: (?P<name>[\w-]+) -->\n).*?(<!-- end of figures -->)", re.DOTALL)


def block(name: str, folder: Path = FOLDER) -> str:
    """The lines between the markers."""
    make, names = BLOCKS[name]
    runs = [read(run, folder) for run in names or stored(folder)]
    sources = ", ".join(f"{run.file} {run.digest}" for run in runs)
    lines = make(*runs)
    after = "\n\n" if lines[-1].startswith("|") else " "  # in the line of a table it would be a cell
    return "\n".join(lines) + f"{after}<!-- {sources} -->\n"


def stored(folder: Path = FOLDER) -> list[str]:
    """The runs that are there; those of other tables may lie beside them."""
    return [name for name in RUNS if (folder / f"{name}.json").exists()]


def page(text: str, folder: Path = FOLDER) -> str:
    """A page with its blocks as the runs have them."""
    return BLOCK.sub(lambda found: found[1] + block(found["name"], folder) + found[3], text)


def pages(root: Path = ROOT) -> dict[Path, str]:
    """The pages that have blocks, and their text."""
    texts = {path: path.read_text() for path in sorted((root / "docs").glob("*.md"))}
    return {path: text for path, text in texts.items() if "<!-- figures: " in text}


def wrong(root: Path = ROOT) -> list[str]:
    """What does not follow from the runs."""
    folder, found, shown = root / "docs/figures", [], set()
    for path, text in pages(root).items():
        names = [match["name"] for match in BLOCK.finditer(text)]
        shown |= {*names}
        if len(names) != text.count("<!-- figures: ") or set(names) - set(BLOCKS):
            found.append(f"{path.relative_to(root)} has a block without an end, or one that nothing makes: {names}")
        elif page(text, folder) != text:
            found.append(f"{path.relative_to(root)} has other figures than docs/figures")
    there = set(stored(folder))
    found += [f"{name} stands on no page" for name in BLOCKS if name not in shown and there.issuperset(BLOCKS[name][1])]
    return found + [f"docs/figures/{name}.svg {what}" for name in PICTURES if (what := wrong_in(name, folder))]


def write(pictures: Iterable[str] = PICTURES, root: Path = ROOT) -> None:
    """Make all tables, and these pictures, from the runs."""
    folder = root / "docs/figures"
    for path, text in pages(root).items():
        path.write_text(page(text, folder))
    for name in pictures:
        save(name, folder)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--write", action="store_true", help="write tables and pictures")
    what.add_argument("--check", action="store_true", help="say what does not follow from the runs; exit code 1")
    if parser.parse_args().write:
        write()
        return 0
    found = wrong()
    print("\n".join(found) or "Pages and pictures follow from docs/figures.")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
