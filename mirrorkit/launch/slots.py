"""How many workers there is room for, as a file or a command says."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from mirrorkit.errors import JobError

_LONGEST = 30.0  # seconds of a command
_DIGITS = 9


def count(source: str) -> int:
    """Return the number in the last line of a file, or of what an executable file or a command prints.

    Raises:
        JobError: there is no number.
    """
    path = Path(source)
    is_file = path.is_file()
    try:
        if is_file and not os.access(path, os.X_OK):
            text = path.read_text()
        else:
            command = str(path.absolute()) if is_file else source
            text = subprocess.check_output(
                command, shell=not is_file, stdin=subprocess.DEVNULL, text=True, timeout=_LONGEST
            )
    except (OSError, UnicodeDecodeError, subprocess.SubprocessError) as error:
        raise JobError(f"slots={source!r} gave no number of workers: {error}.") from error
    last = text.strip().rpartition("\n")[2].strip()
    if not last.isdecimal() or len(last) > _DIGITS:
        raise JobError(f"slots={source!r} must give a number of workers in its last line, found {last[:50]!r}.")
    return int(last)
