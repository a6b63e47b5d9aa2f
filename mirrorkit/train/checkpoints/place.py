"""What a run asks of the place of its checkpoints: a folder of a file system, or one of an object store."""

from __future__ import annotations

import abc
import secrets
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mirrorkit._types import Json

Found = Path | str  # a checkpoint that was found: its path, or its name in a bucket


class Place(abc.ABC):
    """The checkpoints of one run; `name` is the folder or the address, `token` a random word, the run's own."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.token = secrets.token_hex(8)

    @abc.abstractmethod
    def find(self) -> Sequence[Found]:
        """Return the finished checkpoints, the newest first."""

    @abc.abstractmethod
    def read(self, found: Found, wanted: Sequence[Json] | None = None) -> tuple[Json, list[np.ndarray]]:
        """Read one that was found; see `checkpoints/file.py`."""

    @abc.abstractmethod
    def take(self) -> None:
        """Make the place this run's, and remove what killed writers left.

        Raises:
            CheckpointError: it is that of another run, which lives.
            FileError: it cannot be written to.
        """

    @abc.abstractmethod
    def owner(self) -> str | None:
        """Return the token of the run whose place it is now; None where there is none."""

    @abc.abstractmethod
    def require(self) -> None:
        """Raise a `CheckpointError` unless the place is still this run's."""

    @abc.abstractmethod
    def write(self, steps: int, values: Sequence[np.ndarray], about: Json) -> None:
        """Write the checkpoint after so many training steps: readers find all of it, or nothing."""

    @abc.abstractmethod
    def keep_newest(self, steps: int, keep: int) -> None:
        """Remove older checkpoints than that of `steps`, so that with it `keep` are left."""

    @abc.abstractmethod
    def release(self) -> None:
        """Give the place free, if it is this run's."""
