"""The file of a checkpoint: one .npz that NumPy alone can read, whole or not there at all.

Entry `about` is UTF-8 JSON (format, variables, position); entries `0`, `1`, ... are the variables' values. Each carries
the CRC of the zip format, by which damage is found. A dtype that NumPy does not have itself (bfloat16) is stored as
unsigned integers of the same bits.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

from mirrorkit._types import Json
from mirrorkit.errors import CheckpointError, FileError

_FORMAT = 1
_NAME = re.compile(r"step-(\d{10,})\.npz")
_UNFINISHED = ".tmp"


class DamagedError(CheckpointError):
    """A file that cannot be read as a checkpoint; one made before it may be whole."""


def path_of(folder: Path, steps: int) -> Path:
    """Return the path of the checkpoint after so many training steps of the run."""
    return folder / f"step-{steps:010d}.npz"


def find(folder: Path) -> list[Path]:
    """Return the finished checkpoints in a folder, the newest first; none where there is no folder."""
    try:
        names = [name for name in os.listdir(folder) if _NAME.fullmatch(name)]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise FileError(f"The folder of checkpoints {folder} cannot be read: {error}.") from error
    return [folder / name for name in sorted(names, key=_steps, reverse=True)]


def write(path: Path, values: Sequence[np.ndarray], about: Json) -> None:
    """Write a checkpoint under another name, wait until it is on the disk, then give it its name.

    Where that fails nothing of this checkpoint is left. `about` is what JSON can hold.
    """
    text = json.dumps({"format": _FORMAT, **about}).encode()
    entries = {"about": np.frombuffer(text, np.uint8)}
    entries |= {str(index): _storable(value) for index, value in enumerate(values)}
    unfinished = path.with_name(path.name + _UNFINISHED)
    try:
        with open(unfinished, "wb") as file:
            np.savez(file, **entries)  # type: ignore[arg-type]
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except BaseException:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        raise
    _sync_folder(path.parent)


def read(path: Path) -> tuple[Json, list[np.ndarray]]:
    """Read what `write` wrote.

    Raises:
        DamagedError: empty, cut off, changed, or no checkpoint at all.
        CheckpointError: written by a newer version, or there is not enough memory to read it.
        FileError: there is no permission to read it.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            about = json.loads(_read_entry(archive, "about").tobytes())
            if about["format"] > _FORMAT:
                raise CheckpointError(
                    f"{path} has format {about['format']}; this version of mirrorkit reads formats up to {_FORMAT}. "
                    "Update mirrorkit."
                )
            dtypes = [tf.as_dtype(variable["dtype"]).as_numpy_dtype for variable in about["variables"]]
            return about, [_read_entry(archive, str(i)).view(dtype) for i, dtype in enumerate(dtypes)]
    except CheckpointError:
        raise
    except PermissionError as error:
        raise FileError(f"{path} may be whole, but cannot be read: {error}") from error
    except MemoryError as error:
        raise CheckpointError(f"{path} may be whole, but does not fit into memory: {error}") from error
    except Exception as error:  # what a changed byte leads to is zipfile's, json's and NumPy's own affair
        raise DamagedError(f"{path} cannot be read: {type(error).__name__}: {error}") from error


def remove_unfinished(folder: Path) -> None:
    """Remove what a killed writer left."""
    for file in folder.glob(f"*.npz{_UNFINISHED}"):
        if _NAME.fullmatch(file.name.removesuffix(_UNFINISHED)):
            file.unlink(missing_ok=True)


def keep_newest(path: Path, keep: int) -> None:
    """Remove checkpoints older than `path`, so that with it `keep` are left.

    Files of a later step than the one just written could not be read when the run resumed; they do not count.
    """
    older = [file for file in find(path.parent) if _steps(file.name) < _steps(path.name)]
    for file in older[keep - 1 :]:
        file.unlink(missing_ok=True)


def _steps(name: str) -> int:
    found = _NAME.fullmatch(name)
    assert found, name
    return int(found[1])


def _storable(value: np.ndarray) -> np.ndarray:
    return value if value.dtype.isbuiltin == 1 else value.view(f"u{value.dtype.itemsize}")


def _read_entry(archive: zipfile.ZipFile, name: str) -> np.ndarray:
    with archive.open(f"{name}.npy") as entry:
        return np.lib.format.read_array(entry, allow_pickle=False)


def _sync_folder(folder: Path) -> None:
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
