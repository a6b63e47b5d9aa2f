"""The checkpoints in a folder whose file system renames files in one step."""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from mirrorkit._types import Json
from mirrorkit.errors import FileError
from mirrorkit.files import create, one_at_a_time, read_process, this_process
from mirrorkit.object_storage import NOT_REMOVED
from mirrorkit.train.checkpoints import file as checkpoint_file
from mirrorkit.train.checkpoints.place import HELD, Place

_UNFINISHED = re.compile(r"(step-\d{10,}\.npz|\.owner)(\.[0-9a-f]+)?\.tmp")  # what killed writers left


class Folder(Place):
    """A folder."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self._path, self._owner = path, path / ".owner"

    def names(self) -> list[str]:
        """See `Place`."""
        try:
            return os.listdir(self._path)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise FileError(f"The folder of checkpoints {self.name} cannot be read: {error}.") from error

    def read(self, name: str, wanted: Sequence[Json] | None = None) -> tuple[Json, list[np.ndarray]]:
        """See `Place`."""
        return checkpoint_file.read(self._path / name, wanted)

    def _take(self) -> dict[str, Json]:
        """See `Place`."""
        self._path.mkdir(parents=True, exist_ok=True)
        for path in (self._owner, *map(self._path.joinpath, self.find())):
            if path.is_dir():
                raise FileError(
                    f"{path} is a folder, but Checkpoints writes a file of that name. Move it away, or choose another "
                    "folder of checkpoints."
                )
        with one_at_a_time(self._path):
            before = self.owner()
            self.require_free(before)
            for name in filter(_UNFINISHED.fullmatch, self.names()):
                with contextlib.suppress(OSError):
                    (self._path / name).unlink()
            with self._put(self._owner) as new:
                create(new, this_process(token=self.token))
            HELD.add(self.token)
        return before

    def owner(self) -> dict[str, Json]:
        """See `Place`."""
        return read_process(self._owner)

    def write(self, steps: int, values: Sequence[np.ndarray], about: Json) -> None:
        """See `Place`."""
        with self._put(checkpoint_file.path_of(self._path, steps)) as new:
            checkpoint_file.write(new, values, about)
            self.require()
        _sync(self._path)

    @contextlib.contextmanager
    def _put(self, path: Path) -> Iterator[Path]:
        """Yield where to write a file that has its name afterwards; where that fails, nothing of it is left."""
        unfinished = path.with_name(f"{path.name}.{self.token}.tmp")
        try:
            yield unfinished
            os.replace(unfinished, path)
        finally:
            with contextlib.suppress(OSError):
                unfinished.unlink()

    def remove(self, name: str) -> None:
        """See `Place`."""
        try:
            (self._path / name).unlink(missing_ok=True)
        except OSError as error:
            raise FileError(f"{self._path / name} {NOT_REMOVED}: {error}") from error

    def release(self) -> None:
        """See `Place`."""
        HELD.discard(self.token)
        with contextlib.suppress(OSError), one_at_a_time(self._path):
            if self.owner().get("token") == self.token:
                self._owner.unlink()


def _sync(folder: Path) -> None:
    if not hasattr(os, "O_DIRECTORY"):  # Windows
        return
    descriptor = os.open(folder, os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems cannot
            raise
    finally:
        os.close(descriptor)
