"""Which run may write to a folder of checkpoints, so that two never mix theirs.

The file `.owner` names the run's process and holds a random token. A run that starts while another one lives on the
same host is refused. Whether one on another host lives cannot be seen: then the later run takes over, and the earlier
one stops at its next save, because the token is not its own any more.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from pathlib import Path

from mirrorkit._types import Json
from mirrorkit.errors import CheckpointError
from mirrorkit.files import create, is_elsewhere, is_running, one_at_a_time, read_process, this_process

_log = logging.getLogger("mirrorkit")

_NAME = ".owner"
_UNFINISHED = re.compile(r"\.owner-[0-9a-f]+")

held: set[str] = set()  # tokens of the runs of this process; a process that replaced itself (exec) has none of before


class Owner:
    """The right of one run to write checkpoints to a folder; `take` it first."""

    def __init__(self, folder: Path, token: str) -> None:
        self._folder = folder
        self.file = folder / _NAME
        self.token = token

    def found(self) -> dict[str, Json]:
        """Return which run's folder it is, as its file says; nothing where there is none."""
        return read_process(self.file)

    def take(self) -> None:
        """Make the folder this run's.

        Raises:
            CheckpointError: it is that of another run, which lives.
            OSError: the folder cannot be written to.
        """
        with one_at_a_time(self._folder):
            before = read_process(self.file)
            refuse_running(self._folder, before)
            for name in filter(_UNFINISHED.fullmatch, os.listdir(self._folder)):
                (self._folder / name).unlink(missing_ok=True)
            new = self._folder / f"{_NAME}-{self.token}"
            try:
                create(new, this_process(token=self.token))
                os.replace(new, self.file)
            finally:
                new.unlink(missing_ok=True)
            held.add(self.token)
        log_taken_over(str(self._folder), before)

    def require(self) -> None:
        """Raise a `CheckpointError` unless the folder is still this run's."""
        require_own(self._folder, self.found(), self.token)

    def release(self) -> None:
        """Give the folder free, if it is this run's."""
        held.discard(self.token)
        with contextlib.suppress(OSError), one_at_a_time(self._folder):
            if read_process(self.file).get("token") == self.token:
                self.file.unlink()


def refuse_running(place: Path | str, owner: dict[str, Json]) -> None:
    """Refuse a place whose owner is another run, which lives."""
    if is_running(owner) and (owner.get("pid") != os.getpid() or owner.get("token") in held):
        raise CheckpointError(
            f"Another run writes checkpoints to {place}: {named(owner)}. End it, or choose another place."
        )


def require_own(place: Path | str, owner: dict[str, Json], token: str) -> None:
    """Refuse a place whose owner is not the run with this token."""
    if owner.get("token") != token:
        who = f"a later run has taken it over: {named(owner)}" if owner else "what names its owner is gone"
        raise CheckpointError(
            f"This run no longer writes to {place}: {who}. Nothing was saved since. Give each run a place of its own."
        )


def log_taken_over(place: str, before: dict[str, Json]) -> None:
    """Warn where the run that had a place cannot be looked for."""
    if before and is_elsewhere(before):
        _log.warning("%s: taken over from %s. Should that still run, it stops at its next save.", place, named(before))


def named(process: dict[str, Json]) -> str:
    """Say which process that is."""
    what = "this process" if process.get("pid") == os.getpid() else f"process {process.get('pid')}"
    found = f"{what} on {process.get('host')}, started at {process.get('since')}"
    return ascii(found)[1:-1]  # in one line, whoever wrote the file
