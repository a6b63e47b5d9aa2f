"""The table of docs/faults.md: what a user sees when something happens to a job, and whether the result is right.

Run: python tests/faults/fault_table.py [--write docs/faults.md] [--only NAME ...]

Each fault happens to a real job on this machine (one needs root, to fill up a file system). Prints the table, and
writes it into the page, between the lines that mark it; with --only it renews these lines of the table that stands
there. The exit code is 1 when a result is not right.
"""

from __future__ import annotations

import argparse
import functools
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # where jobs.py is

import faults
import server_faults
import start_faults
from judged import Row

import mirrorkit as mk

BEGIN, END = "<!-- table: written by tests/faults/fault_table.py -->", "<!-- end of the table -->"
SHOWN = 150  # characters of a message
FAULTS: dict[str, Callable[[Path], Row]] = {
    function.__name__: function
    for function in (
        faults.worker_killed,
        faults.chief_killed,
        faults.worker_killed_without_launcher,
        faults.chief_killed_without_launcher,
        faults.sigterm_to_one_worker,
        faults.worker_stopped,
        server_faults.ps_killed,
        server_faults.worker_of_ps_killed,
        server_faults.worker_of_ps_stopped,
        faults.launcher_killed,
        faults.disk_full,
        start_faults.peer_never_starts,
        start_faults.port_taken,
    )
} | {kind: functools.partial(start_faults.bad_config, kind) for kind in start_faults.BAD_CONFIGS}


def happen(name: str) -> Row:
    """Let a fault happen in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        try:
            row = FAULTS[name](Path(folder))
        except Exception as error:
            return Row(name, "", 0.0, [f"{type(error).__name__}: {error}"])
        return row._replace(seen=row.seen.replace(folder, "FOLDER"))


def as_markdown(rows: list[Row]) -> str:
    """One line for each fault."""
    lines = [["fault", "what one sees", "after", "result right?"], ["---", "---", "---:", "---"]]
    for row in rows:
        seen = row.seen if len(row.seen) <= SHOWN else row.seen[:SHOWN].rpartition(" ")[0] + " ..."
        quoted = seen if seen.startswith("nothing") else f"`{seen}`"
        right = f"**no: {'; '.join(row.problems)}**" if row.problems else "yes"
        lines.append([row.fault, quoted, f"{row.seconds:.1f} s", right])
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def heading(count: int, seconds: float) -> str:
    """Date, machine, versions, cost and command."""
    versions = [f"Python {sys.version.split()[0]}", *(f"{name} {version(name)}" for name in ("tensorflow", "keras"))]
    machine = f"{os.cpu_count()} CPU cores ({os.uname().machine}, {os.uname().sysname})"
    return (
        f"{time.strftime('%Y-%m-%d')}: {machine}, {', '.join(versions)}, mirrorkit {mk.__version__}; {count} faults, "
        f"{seconds / 60:.0f} minutes; random steps from seed {faults.SEED}.\n"
        "Command: `python tests/faults/fault_table.py`"
    )


def put_between(page: Path, text: str, begin: str = BEGIN, end: str = END) -> None:
    """Replace what stands between the two lines that mark the table."""
    before, found, rest = page.read_text().partition(begin)
    _, also_found, after = rest.partition(end)
    if not (found and also_found):
        raise SystemExit(f"{page} lacks the lines {begin!r} and {end!r}, between which the table belongs.")
    page.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}")


def renew(page: Path, lines: list[str]) -> None:
    """Put lines in the places of those with the same fault."""
    text = page.read_text()
    for line in lines:
        fault = re.escape(line.split(" | ")[0])
        text, found = re.subn(rf"(?m)^{fault} \| .*$", lambda _, line=line: line, text)
        if found != 1:
            raise SystemExit(f"{page} has {found} lines for the fault {fault}. Write the whole table.")
    page.write_text(text)


def main() -> int:
    """Let all faults happen, print, write; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, help="the page to put the table into")
    parser.add_argument("--only", nargs="+", choices=sorted(FAULTS), metavar="NAME", help=", ".join(FAULTS))
    options = parser.parse_args()
    begun = time.monotonic()
    rows = []
    for name in options.only or FAULTS:
        rows.append(happen(name))
        print(f"{name}: {rows[-1].problems or 'right'} ({time.monotonic() - begun:.0f} s)", flush=True)
    text = f"{heading(len(rows), time.monotonic() - begun)}\n\n{as_markdown(rows)}"
    print(f"\n{text}")
    if options.write and options.only:
        renew(options.write, as_markdown(rows).splitlines()[2:])
    elif options.write:
        put_between(options.write, text)
    return 1 if any(row.problems for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
