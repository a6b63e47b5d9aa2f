"""Pages that commands write tables into."""

from __future__ import annotations

from pathlib import Path


def put_between(page: Path, text: str, begin: str, end: str) -> None:
    """Replace what stands between the two lines that mark a table."""
    before, found, rest = page.read_text().partition(begin)
    _, also_found, after = rest.partition(end)
    if not (found and also_found):
        raise SystemExit(f"{page} lacks the lines {begin!r} and {end!r}, between which the table belongs.")
    page.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}")
