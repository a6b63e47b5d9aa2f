"""The file of a checkpoint: one .npz that NumPy alone can read, whole or not there at all.

Entry `about` is UTF-8 JSON (format, variables, position, callbacks, arrays); entries `0`, `1`, ... are the values of
the variables and then, from format 2 on, the arrays that callbacks remember. Each carries the CRC of the zip format, by
which damage is found. A dtype that NumPy does not have itself (bfloat16) is stored as
unsigned integers of the same bits.

Before any value is read, sizes and shapes of all entries are compared with each other and with the size of the file: a
damaged or forged one takes no more memory than a whole one.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import re
import secrets
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
import tensorflow as tf

from mirrorkit._types import Json
from mirrorkit.errors import CheckpointError, FileError
from mirrorkit.files import open_regular
from mirrorkit.train.checkpoints.callback_states import read_states
from mirrorkit.train.checkpoints.owner import Owner
from mirrorkit.train.checkpoints.position import Position
from mirrorkit.train.checkpoints.variables import require_described, require_same
from mirrorkit.whole import is_whole

_FORMAT = 2
_NAME = re.compile(r"step-(\d{10,})\.npz")
_UNFINISHED = re.compile(r"step-\d{10,}\.npz(\.[0-9a-f]+)?\.tmp")
_LONGEST_ABOUT = 2**24  # bytes of `about`, or a quarter of the file
_MOST_BRACKETS = 500_000  # lists and dicts in `about`
_LONGEST_HEADER = 1000  # of an array


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


def write(path: Path, values: Sequence[np.ndarray], about: Json, owner: Owner | None = None) -> None:
    """Write a checkpoint under another name, wait until it is on the disk, then give it its name.

    Where that fails nothing of this checkpoint is left. `about` is what JSON can hold.

    Raises:
        CheckpointError: the folder does not belong to `owner` any more, or the history is too long.
    """
    text = json.dumps({"format": _FORMAT, **about}).encode()
    try:
        _require_short(len(text), sum(value.nbytes for value in values), _brackets(text))
    except ValueError as error:
        raise CheckpointError(
            f"{path} was not written: {error}, most of it history. Leave metrics with many values out of Step's "
            "metrics, and compute them from loop.predict."
        ) from error
    entries = {"about": np.frombuffer(text, np.uint8)}
    entries |= {str(index): value.view(_stored(value.dtype)) for index, value in enumerate(values)}
    unfinished = path.with_name(f"{path.name}.{secrets.token_hex(8) if owner is None else owner.token}.tmp")
    try:
        with open(unfinished, "xb") as file:  # a new file, never one that a link of this name leads to
            np.savez(file, **entries)  # type: ignore[arg-type]
            file.flush()
            os.fsync(file.fileno())
        if owner is not None:
            owner.require()
        os.replace(unfinished, path)
    except BaseException:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        raise
    _sync_folder(path.parent)


def read(path: Path, wanted: Sequence[Json] | None = None) -> tuple[Json, list[np.ndarray]]:
    """Read what `write` wrote: `about`, with the states of callbacks, and the values of the variables.

    Everything is checked before the values are read.

    Args:
        path: the file.
        wanted: the variables that it is to have, as `describe` gives them.

    Raises:
        DamagedError: empty, cut off, changed, or no checkpoint at all.
        CheckpointError: written by a newer version, of other variables than `wanted`, or there is not enough memory.
        FileError: there is no permission to read it.
    """
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            _check_directory(file, size)
            with zipfile.ZipFile(file) as archive:
                about = _read_about(archive, path, size)
                if wanted is not None:
                    require_same(path, about["variables"], wanted)
                described = _described(about)
                dtypes = [np.dtype(tf.as_dtype(one["dtype"]).as_numpy_dtype) for one in described]
                for i, (dtype, one) in enumerate(zip(dtypes, described, strict=True)):
                    _check_header(archive, f"{i}.npy", _stored(dtype), one["shape"])
                values = [_read_entry(archive, f"{i}.npy").view(dtype) for i, dtype in enumerate(dtypes)]
                count = len(about["variables"])
                if "callbacks" in about:
                    about["callbacks"] = read_states(about["callbacks"], values[count:])
                return about, values[:count]
    except DamagedError:
        raise
    except CheckpointError as error:
        raise CheckpointError(f"{error}" if str(path) in str(error) else f"{path}: {error}") from error
    except PermissionError as error:
        raise FileError(f"{path} may be whole, but cannot be read: {error}") from error
    except MemoryError as error:
        raise CheckpointError(f"{path} may be whole, but does not fit into memory: {error}") from error
    except Exception as error:  # what a changed byte leads to is zipfile's, json's and NumPy's own affair
        raise DamagedError(f"{path} cannot be read: {type(error).__name__}: {error}") from error


def remove_unfinished(folder: Path) -> None:
    """Remove what killed writers left; only the folder's owner may."""
    for name in os.listdir(folder):
        if _UNFINISHED.fullmatch(name):
            with contextlib.suppress(OSError):
                (folder / name).unlink()


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


def _stored(dtype: np.dtype) -> np.dtype:
    """Return the dtype of NumPy's own that has the same bits."""
    return dtype if dtype.isbuiltin == 1 else np.dtype(f"u{dtype.itemsize}")


def _require_short(length: int, size: int, brackets: int = 0) -> None:
    """Refuse an `about` that in a file of this size would take many times its memory to read."""
    if length > max(_LONGEST_ABOUT, size // 4) or brackets > _MOST_BRACKETS:
        raise ValueError(f"its description of the run takes {length / 2**20:.0f} MiB")


def _check_directory(file: BinaryIO, size: int) -> None:
    """Refuse a file whose zip directory is longer than one of entries with arrays can be: it is read as a whole."""
    file.seek(max(0, size - 98))
    end = file.read()
    length = int.from_bytes(end[-10:-6], "little")
    if end[-42:-38] == b"PK\6\7":  # the locator of a record with longer numbers, of large files
        length = int.from_bytes(end[40:48], "little")
    if end[-22:-18] != b"PK\5\6" or length > 1000 + size // 4:
        raise ValueError("no zip directory at its end")
    file.seek(0)


def _read_about(archive: zipfile.ZipFile, path: Path, size: int) -> Json:
    entries = archive.infolist()
    _require_short(archive.getinfo("about.npy").file_size, size)
    _check_header(archive, "about.npy", np.dtype(np.uint8))
    text = _read_entry(archive, "about.npy").tobytes()
    _require_short(len(text), size, _brackets(text))
    about = json.loads(text)
    if not isinstance(about, dict) or not is_whole(about.get("format")):
        raise ValueError("it does not say which format it has")
    if about["format"] > _FORMAT:
        raise CheckpointError(
            f"{path} has format {about['format']}; this version of mirrorkit reads formats up to {_FORMAT}. "
            "Update mirrorkit."
        )
    stored = all(entry.compress_type == zipfile.ZIP_STORED for entry in entries)
    if not stored or sum(entry.file_size for entry in entries) > size:
        raise ValueError("its entries are longer than the file")
    require_described(about.get("variables"))
    require_described(about.get("arrays", []))
    names = ["about.npy", *(f"{i}.npy" for i in range(len(_described(about))))]
    if sorted(entry.filename for entry in entries) != sorted(names):
        raise ValueError("it does not have one entry for each variable")
    position = Position.from_json(about.get("position"))
    if _NAME.fullmatch(path.name) and _steps(path.name) != position.steps:
        raise ValueError(f"it was made after {position.steps} steps, which its name does not say")
    return about


def _described(about: Json) -> list[Json]:
    return [*about["variables"], *about.get("arrays", [])]


def _brackets(text: bytes) -> int:
    return text.count(b"[") + text.count(b"{")


def _check_header(archive: zipfile.ZipFile, name: str, dtype: np.dtype, shape: list[int] | None = None) -> None:
    """Refuse an array of another dtype or shape, or whose values are not as long as its header says."""
    with archive.open(name) as entry:
        is_first = np.lib.format.read_magic(entry) == (1, 0)
        read = np.lib.format.read_array_header_1_0 if is_first else np.lib.format.read_array_header_2_0
        found, _, stored = read(entry, max_header_size=_LONGEST_HEADER)
        length = entry.tell() + math.prod(found) * stored.itemsize
    if stored != dtype or (shape is not None and list(found) != shape):
        raise ValueError(f"{name} holds {stored} {list(found)}, not {dtype} {shape or ''}")
    if length != archive.getinfo(name).file_size:
        raise ValueError(f"{name} is not as long as its header says")


def _read_entry(archive: zipfile.ZipFile, name: str) -> np.ndarray:
    with archive.open(name) as entry:
        return np.lib.format.read_array(entry, allow_pickle=False, max_header_size=_LONGEST_HEADER)


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
