"""Readers of the files of MNIST and Fashion-MNIST: IDX, plain or gzip, and mnist.npz.

IDX: https://yann.lecun.com/exdb/mnist/ (two zero bytes, a type code, the number of dimensions, then each dimension as a
big-endian 32-bit number, then the values). What a header says is compared with the file before any array is made.
"""

from __future__ import annotations

import errno
import gzip
import math
import zipfile
import zlib
from pathlib import Path

import numpy as np

from mirrorkit.errors import DataError

_UNSIGNED_BYTE = 8
_CHUNK = 1 << 20  # gzip makes a copy of what it reads at a time
_PLAIN = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # what NumPy writes
_LARGEST = 128 << 20  # bytes, more than any of the published files becomes
_RATIO = 4  # of a larger file, what it becomes for each of its bytes


def read_idx(path: Path) -> np.ndarray:
    """Read the array in an IDX file of unsigned bytes: uint8, with the shape that its header gives."""
    packed, size = path.suffix == ".gz", path.stat().st_size
    try:
        with gzip.open(path) if packed else path.open("rb") as file:
            begin = file.read(4)
            if len(begin) < 4 or begin[:3] != bytes([0, 0, _UNSIGNED_BYTE]) or begin[3] == 0:
                raise DataError(
                    f"{path} is not an IDX file of unsigned bytes: it should begin with 00 00 08, found "
                    f"{begin.hex(' ') or 'nothing'}. Fetch it again."
                )
            header = 4 + 4 * begin[3]
            sizes = file.read(header - 4)
            if len(sizes) < header - 4:
                raise DataError(
                    f"{path} is cut short: a header of {header} bytes was expected, found {4 + len(sizes)} bytes."
                )
            shape = tuple(int(n) for n in np.frombuffer(sizes, ">u4"))
            wanted = math.prod(shape)
            if packed:
                _require_plausible(path, wanted, size, "Unpack it (gunzip) if that is right.")
            elif header + wanted != size:
                raise _other_size(path, shape, header + wanted, f"found {size}")
            values = np.empty(wanted, np.uint8)
            done = 0
            while done < wanted and (count := file.readinto(values[done : done + _CHUNK].data)):
                done += count
            if done < wanted or file.read(1):
                found = f"found {header + done}" if done < wanted else "there are more"
                raise _other_size(path, shape, header + wanted, found)
        return values.reshape(shape)
    except DataError:
        raise
    except (gzip.BadGzipFile, EOFError, zlib.error, ValueError) as error:  # NumPy has at most 64 dimensions
        raise DataError(f"{path} is damaged: {error}. Delete it and fetch it again.") from error


def read_npz(path: Path, names: tuple[str, ...]) -> list[np.ndarray]:
    """Read these arrays of integers in an .npz file.

    Raises:
        DataError: a file that is damaged, lacks one of them, or becomes far larger than it is.
    """
    try:
        with zipfile.ZipFile(path) as file:
            members = [file.getinfo(f"{name}.npy") for name in names]
            if not all(member.compress_type in _PLAIN for member in members):
                raise ValueError("its compression is not deflate")
            claimed = sum(member.file_size for member in members)
            _require_plausible(path, claimed, path.stat().st_size, "If that is right, write it by numpy.savez.")
            return [_read_member(file, member) for member in members]
    except DataError:
        raise
    except Exception as error:  # a damaged archive may raise anything
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):  # of the disk; a wrong offset is not
            raise
        raise DataError(
            f"{path} is damaged: it should hold {', '.join(names)}; {type(error).__name__}: {str(error)[:200]}. "
            "Delete it and fetch it again."
        ) from error


def _read_member(file: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
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


def _require_plausible(path: Path, claimed: int, size: int, cure: str) -> None:
    """Refuse a compressed file of `size` bytes that claims to become more than data of images does."""
    most = _LARGEST + _RATIO * size
    if claimed > most:
        raise DataError(
            f"{path} has {size} bytes and claims to expand to {claimed}, more than {most}: it is damaged, or made to "
            f"fill the memory. Delete it and fetch it again. {cure}"
        )


def _other_size(path: Path, shape: tuple[int, ...], expected: int, found: str) -> DataError:
    return DataError(
        f"{path} is damaged: its header says {list(shape)}, which makes {expected} bytes; {found}. "
        "Delete it and fetch it again."
    )
