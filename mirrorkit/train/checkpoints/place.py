"""What a run asks of the place of its checkpoints: a folder of a file system, or one of an object store.

A file or an object in it names the process of the run that may write there, and holds the run's random token, so that
two runs never mix their checkpoints. A run that starts while another one lives on the same host is refused. Whether one
on another host lives cannot be seen: then the later run takes over, and the earlier one stops at its next save, because
the token is not its own any more.
"""

from __future__ import annotations

import abc
import logging
import os
import re
import secrets
from collections.abc import Sequence

import numpy as np

from mirrorkit._types import Json
from mirrorkit.errors import CheckpointError, FileError, MirrorkitError
from mirrorkit.files import is_elsewhere, is_running

_log = logging.getLogger("mirrorkit")

HELD: set[str] = set()  # tokens of the runs of this process; a process that replaced itself (exec) has none of before


class Place(abc.ABC):
    """The checkpoints of one run; `name` is the folder or the address, `token` a random word, the run's own."""

    finished = re.compile(r"step-\d{10,}\.npz")  # the names of checkpoints that are whole

    def __init__(self, name: str) -> None:
        self.name = name
        self.token = secrets.token_hex(8)

    @abc.abstractmethod
    def names(self) -> list[str]:
        """Return the names of all that is there; none where there is no such place."""

    def find(self) -> list[str]:
        """Return the names of the finished checkpoints, the newest first."""
        return sorted(filter(self.finished.fullmatch, self.names()), key=steps_of, reverse=True)

    @abc.abstractmethod
    def read(self, name: str, wanted: Sequence[Json] | None = None) -> tuple[Json, list[np.ndarray]]:
        """Read one that was found; see `checkpoints/file.py`."""

    def take(self) -> None:
        """Make the place this run's, and remove what killed writers left.

        Raises:
            CheckpointError: it is that of another run, which lives.
            FileError: it cannot be written to.
        """
        try:
            before = self._take()
        except MirrorkitError:
            raise
        except Exception as error:  # which kinds there are is the affair of each package
            raise FileError(
                f"Checkpoints cannot be written to {self.name}: {type(error).__name__}: {error}. Choose a place in "
                "which you may create files; at an address look at your credentials and at the network."
            ) from error
        if before and is_elsewhere(before):
            _log.warning(
                "%s: taken over from %s. Should that still run, it stops at its next save.", self.name, _named(before)
            )

    @abc.abstractmethod
    def _take(self) -> dict[str, Json]:
        """Do so; return what `owner` gave before."""

    @abc.abstractmethod
    def owner(self) -> dict[str, Json]:
        """Return the process and the token of the run whose place it is now; nothing where there is none."""

    def require(self) -> None:
        """Raise a `CheckpointError` unless the place is still this run's."""
        found = self.owner()
        if found.get("token") != self.token:
            who = f"a later run has taken it over: {_named(found)}" if found else "its .owner is gone"
            raise CheckpointError(
                f"This run no longer writes to {self.name}: {who}. Nothing was saved since. Give each run a place of "
                "its own."
            )

    def require_free(self, before: dict[str, Json]) -> None:
        """Raise a `CheckpointError` where the run whose place it was lives."""
        if is_running(before) and (before.get("pid") != os.getpid() or before.get("token") in HELD):
            raise CheckpointError(
                f"Another run writes checkpoints to {self.name}: {_named(before)}. End it, or choose another place."
            )

    @abc.abstractmethod
    def write(self, steps: int, values: Sequence[np.ndarray], about: Json) -> None:
        """Write the checkpoint after so many training steps: readers find all of it, or nothing."""

    @abc.abstractmethod
    def remove(self, name: str) -> None:
        """Remove one that was found."""

    def keep_newest(self, steps: int, keep: int) -> None:
        """Remove older checkpoints than that of `steps`, so that with it `keep` are left.

        Those of a later step could not be read when the run resumed; they do not count.
        """
        older = [name for name in self.find() if steps_of(name) < steps]
        for name in older[keep - 1 :]:
            self.remove(name)

    @abc.abstractmethod
    def release(self) -> None:
        """Give the place free, if it is this run's."""


def steps_of(name: str) -> int:
    """Return the number in the name of a checkpoint, or of its manifest."""
    return int(re.findall(r"\d+", name)[0])


def _named(process: dict[str, Json]) -> str:
    """Say which process that is."""
    what = "this process" if process.get("pid") == os.getpid() else f"process {process.get('pid')}"
    found = f"{what} on {process.get('host')}, started at {process.get('since')}"
    return ascii(found)[1:-1]  # in one line, whoever wrote the file
