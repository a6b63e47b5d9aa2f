"""Where checkpoints are, as a user says it: the path of a folder, or an address."""

from __future__ import annotations

import os
from pathlib import Path

from mirrorkit.errors import ArgumentError
from mirrorkit.object_storage import is_address
from mirrorkit.train.checkpoints.bucket import Bucket
from mirrorkit.train.checkpoints.folder import Folder
from mirrorkit.train.checkpoints.place import Place


def folder_of(folder: str | os.PathLike[str]) -> Path | str:
    """Return a folder as a path that stays the same if the process changes its folder, or an address as it is."""
    text = os.fspath(folder)
    if text.startswith("file:///"):
        text = text.removeprefix("file://")
    if not text:
        raise ArgumentError("Checkpoints need the path of a folder, found ''. For the current folder write '.'.")
    return text if is_address(text) else Path(text).expanduser().absolute()


def place_of(folder: Path | str) -> Place:
    """Return the place of what `folder_of` gave."""
    return Folder(folder) if isinstance(folder, Path) else Bucket(folder)
