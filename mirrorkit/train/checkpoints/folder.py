"""The checkpoints in a folder whose file system renames files in one step."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mirrorkit._types import Json
from mirrorkit.errors import FileError
from mirrorkit.train.checkpoints import file as checkpoint_file
from mirrorkit.train.checkpoints.owner import Owner
from mirrorkit.train.checkpoints.place import Found, Place


class Folder(Place):
    """A folder."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self._path, self._owner = path, Owner(path, self.token)

    def find(self) -> Sequence[Path]:
        """See `Place`."""
        return checkpoint_file.find(self._path)

    def read(self, found: Found, wanted: Sequence[Json] | None = None) -> tuple[Json, list[np.ndarray]]:
        """See `Place`."""
        return checkpoint_file.read(Path(found), wanted)

    def take(self) -> None:
        """See `Place`."""
        try:
            self._path.mkdir(parents=True, exist_ok=True)
            for path in (self._owner.file, *self.find()):
                if path.is_dir():
                    raise FileError(
                        f"{path} is a folder, but Checkpoints writes a file of that name. Move it away, or choose "
                        "another folder of checkpoints."
                    )
            self._owner.take()
            checkpoint_file.remove_unfinished(self._path)
        except OSError as error:
            raise FileError(
                f"Checkpoints cannot be written to {self.name}: {error}. Choose a folder in which you may create files."
            ) from error

    def owner(self) -> str | None:
        """See `Place`."""
        return self._owner.found().get("token")

    def require(self) -> None:
        """See `Place`."""
        self._owner.require()

    def write(self, steps: int, values: Sequence[np.ndarray], about: Json) -> None:
        """See `Place`."""
        checkpoint_file.write(checkpoint_file.path_of(self._path, steps), values, about, self._owner)

    def keep_newest(self, steps: int, keep: int) -> None:
        """See `Place`."""
        checkpoint_file.keep_newest(checkpoint_file.path_of(self._path, steps), keep)

    def release(self) -> None:
        """See `Place`."""
        self._owner.release()
