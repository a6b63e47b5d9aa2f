"""How many workers there is room for, as a file or a command says."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mirrorkit.errors import JobError
from mirrorkit.launch.process import Process

_LONGEST = 30.0  # seconds of a command


def count(source: str) -> int:
    """Return the number in the last line of a file, or of what an executable file or a command prints.

    Raises:
        JobError: there is no number.
    """
    path = Path(source)
    is_file = os.path.isfile(source)  # unlike pathlib's, False for a command longer than a path may be
    try:
        if is_file and not os.access(path, os.X_OK):
            text = path.read_text()
        else:
            text = _last_line([str(path.absolute())] if is_file else ["/bin/sh", "-c", source])
    except (OSError, UnicodeDecodeError) as error:
        raise JobError(f"slots={source!r} gave no number of workers: {error}.") from error
    last = text.strip().rpartition("\n")[2].strip()
    if not re.fullmatch("[0-9]{1,9}", last):
        raise JobError(f"slots={source!r} must give a number of workers in its last line, found {last[:50]!r}.")
    return int(last)


def _last_line(command: list[str]) -> str:
    """Return the last line that a command prints; all that it has started ends with it."""
    told: dict[str, Any] = {"exit": None, "out": "", "err": ""}
    process = Process(
        command, os.environ, lambda kind, value: told.update({kind: told[kind] if value == "" else value})
    )
    try:
        process.wait(_LONGEST)
        code = told["exit"]
    finally:
        process.end()
    if code != 0:
        how = f"has not ended within {_LONGEST:g} s" if code is None else f"exit status {code}"
        raise OSError(f"{how} {told['err']}")
    return str(told["out"])
