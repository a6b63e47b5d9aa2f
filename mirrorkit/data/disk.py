"""Paths that users give, and failures of a disk, from Python or from TensorFlow, as one kind of error."""

from __future__ import annotations

import os
import re
import reprlib
import zlib
from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from mirrorkit.errors import DataError, FileError, MirrorkitError, RecipeError

# What TensorFlow makes of EACCES, EISDIR and ENOTDIR, ENOSPC.
DISK_ERRORS = (tf.errors.PermissionDeniedError, tf.errors.FailedPreconditionError, tf.errors.ResourceExhaustedError)

CURE = "Check the disk and the file's permissions."
_PIECE = 1 << 20  # bytes read at a time


def path_of(who: str, given: Any) -> str:
    """Return a path as text, with "~" as the home folder.

    Raises:
        RecipeError: what is no path; `who` takes it.
    """
    if not isinstance(given, (str, os.PathLike)) or not isinstance(path := os.fspath(given), str):
        raise RecipeError(
            f"A path for {who} must be a str or a pathlib.Path; found {reprlib.repr(given)} ({type(given).__name__}). "
            "Bytes become a str with os.fsdecode(path)."
        )
    with file_errors(f"{path!r} cannot be read", CURE):
        path.encode()  # TensorFlow takes UTF-8; Python's text may stand for other bytes
    return os.path.expanduser(path)


def paths_of(who: str, given: Any) -> list[str]:
    """Return the paths of one, or of a sequence in its order; see `path_of`."""
    one = isinstance(given, (str, bytes, os.PathLike, Mapping, Set)) or not isinstance(given, Iterable)
    return [path_of(who, path) for path in ([given] if one else given)]


@contextmanager
def file_errors(what: str, cure: str) -> Iterator[None]:
    """Turn what Python or TensorFlow raise about a file into a FileError: `what`, the reason, `cure`."""
    try:
        yield
    except MirrorkitError:
        raise
    except UnicodeError as error:
        raise FileError(f"{what}: a name is not UTF-8 ({error}). Rename the file or folder.") from error
    except (OSError, tf.errors.OpError) as error:
        raise FileError(f"{what}: {reason(error)}. {cure}") from error


@contextmanager
def damage_named(path: str | os.PathLike[str], cure: str = "Delete it and fetch it again.") -> Iterator[None]:
    """Turn what a damaged file makes its reader raise into a DataError with its name, and `cure`."""
    try:
        yield
    except (FileNotFoundError, IsADirectoryError, PermissionError):
        raise
    except Exception as error:
        raise DataError(f"{os.fspath(path)} is damaged: {type(error).__name__}: {str(error)[:200]}. {cure}") from error


def reason(error: Exception) -> str:
    """The first line of what an error says, without TensorFlow's notes on nodes and operations."""
    message = error.message if isinstance(error, tf.errors.OpError) else error
    line = re.sub(r"^({{.*?}}\s*)+", "", str(message).partition("\n")[0])
    return re.split(r"{{|\[\[|\[Op:", line)[0].strip()


def crc32(file: str) -> int:
    """Read a file through and return the CRC of its bytes.

    Raises:
        FileError: it cannot be read.
    """
    number = 0
    with file_errors(f"{file} cannot be read", CURE), tf.io.gfile.GFile(file, "rb") as opened:
        while piece := opened.read(_PIECE):
            number = zlib.crc32(piece, number)
    return number
