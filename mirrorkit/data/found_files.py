"""The data files that a name, a pattern, a folder or a list means, on this machine or at addresses."""

from __future__ import annotations

import fnmatch
import os
import re
from typing import Any

import tensorflow as tf

from mirrorkit.data import remote_files
from mirrorkit.data.disk import CURE, file_errors, paths_of
from mirrorkit.errors import DataError
from mirrorkit.object_storage import is_address


def found(who: str, files: Any, end: str) -> tuple[str, ...]:
    """Return the files that a user named: one, a pattern, a folder, or a list; sorted but for a list.

    Those at addresses are `RemoteFile`s: TensorFlow, which reads some addresses itself, has no part in this.

    Args:
        who: takes them, for errors.
        files: what the user gave.
        end: of the names of the files in a folder, such as ".parquet".

    Raises:
        RecipeError: what is no path.
        DataError: no such file.
        FileError: what cannot be listed.
    """
    given = paths_of(who, files)
    if not given:
        raise DataError(f"{who} was given an empty list of files.")
    path = given[0]
    if not isinstance(files, (str, os.PathLike)):
        meant = remote_files.described(given) if any(map(is_address, given)) else given
    elif is_address(path):
        meant = remote_files.matching(path) or remote_files.matching(f"{path.rstrip('/')}/*{end}")
    else:
        meant = listed(path, f"*{end}") if os.path.isdir(path) else matching(path)
    if not meant:
        raise DataError(
            f"{files}: no {end.lstrip('.')} file of that name or pattern. Name files in folders within one by a "
            f"pattern, such as '{files}/*/*{end}'."
        )
    return tuple(meant)


def matching(pattern: str) -> list[str]:
    """Return the files of this name or pattern, whose folder may have brackets or stars in its own name."""
    is_remote = remote_files.is_remote(pattern)
    if not is_remote and tf.io.gfile.exists(pattern):
        return [pattern]
    folder, name = os.path.split(pattern)
    if re.search(r"[*?\[\\]", folder) and (listed(folder, name) if is_remote else tf.io.gfile.isdir(folder)):
        return listed(folder, name)
    with file_errors(f"The files of {pattern!r} cannot be listed", CURE):
        return [*remote_files.matching(pattern)] if is_remote else sorted(tf.io.gfile.glob(pattern))


def listed(folder: str, pattern: str) -> list[str]:
    """Return the files in a folder whose names have this pattern; on this machine also its folders."""
    if remote_files.is_remote(folder):
        return [file for file in remote_files.listed(folder) if fnmatch.fnmatchcase(os.path.basename(file), pattern)]
    return sorted(os.path.join(folder, name) for name in fnmatch.filter(tf.io.gfile.listdir(folder), pattern))
