"""What pages say of other projects, and how old it is: `python tests/claims.py`.

A page that compares mirrorkit with other projects has a line such as "Checked on 2026-11-27: Keras 3.15.1, Horovod
0.28.1." The command prints these lines, oldest first. The exit code is 1 when one is older than a year.
"""

from __future__ import annotations

import datetime
import re
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

PROJECTS = "Keras|orbit|Accelerate|Fabric|Horovod|DDP|DistributedDataParallel|MirroredStrategy|TFJob"
# Tables of stored runs, which have a date and versions.
MEASURED = {"hardware.md", "speed-details.md", "speed-figures.md"}


def compares(page: str) -> bool:
    """Whether the head of a table names another project."""
    heads = re.findall(r"^(\|.*)\n\|[ :|-]+\|$", page, re.MULTILINE)
    return any(re.search(rf"\b({PROJECTS})\b", head) for head in heads)


def checked(page: str) -> list[tuple[datetime.date, str]]:
    """The date and the projects of each line."""
    found = re.findall(r"^Checked on (\d{4}-\d\d-\d\d): ([^\n]+(?:\n[^\n]+)*)", page, re.MULTILINE)
    return [(datetime.date.fromisoformat(date), " ".join(what.split())) for date, what in found]


def main(pages: Iterable[Path], today: datetime.date) -> int:
    """Print a line for each, and return the exit code."""
    lines = sorted((date, page.name, what) for page in pages for date, what in checked(page.read_text()))
    old = [line for line in lines if (today - line[0]).days > 365]
    for line in lines:
        print(f"{'OLD ' if line in old else ''}{line[0]} {line[1]}: {line[2]}")
    return 1 if old else 0


if __name__ == "__main__":
    sys.exit(main(PAGES, datetime.date.today()))
