"""Reader of mnist.npz: the headers first, then arrays of the size that they give."""

from __future__ import annotations

import errno
import math
import zipfile
from pathlib import Path

import numpy as np

from mirrorkit.data.packed import require_plausible
from mirrorkit.errors import DataError

_PLAIN = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # what NumPy writes


def read(path: Path, names: tuple[str, ...]) -> list[np.ndarray]:
    """Read these arrays of integers in an .npz file.

    Raises:
        DataError: a file that is damaged, lacks one of them, or becomes far larger than it is.
    """
    try:
        with zipfile.ZipFile(path) as file:
            members = [file.getinfo(f"{name}.npy") for name in names]
            if not all(member.compress_type in _PLAIN for member in members):
                raise ValueError("it is compressed by something else than deflate")
            claimed = sum(member.file_size for member in members)
            require_plausible(path, claimed, path.stat().st_size, "If that is right, write it by numpy.savez.")
            return [_read(file, member) for member in members]
    except DataError:
        raise
    except OSError as error:
        if error.errno not in (None, errno.EINVAL):  # of the disk; a wrong offset is invalid
            raise
        failed: Exception = error
    except Exception as error:  # a damaged archive may raise anything
        failed = error
    raise DataError(
        f"{path} is damaged: it should hold {', '.join(names)}; {type(failed).__name__}: {str(failed)[:200]}. "
        "Delete it and fetch it again."
    ) from failed


def _read(file: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    with file.open(member) as opened:
        version = np.lib.format.read_magic(opened)
        if version not in ((1, 0), (2, 0)):
            raise ValueError(f"{member.filename} has version {version} of the format")
        read_header = getattr(np.lib.format, f"read_array_header_{version[0]}_0")
        shape, fortran, dtype = read_header(opened)
        size = math.prod(shape) * dtype.itemsize
        if dtype.kind not in "iu" or opened.tell() + size != member.file_size:
            raise ValueError(f"{member.filename} has {member.file_size} bytes for {dtype} {list(shape)}")
        content = bytearray(opened.read())  # writable, as users expect
    return np.frombuffer(content, dtype).reshape(shape, order="F" if fortran else "C")
