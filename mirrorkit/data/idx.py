"""Reader of the IDX files of MNIST and Fashion-MNIST, plain or gzip.

The format: https://yann.lecun.com/exdb/mnist/ (two zero bytes, a type code, the number of dimensions, then each
dimension as a big-endian 32-bit number, then the values).
"""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import numpy as np

from mirrorkit.data.packed import require_plausible
from mirrorkit.errors import DataError

_UNSIGNED_BYTE = 8
_CHUNK = 1 << 20  # gzip makes a copy of what it reads at a time


def read(path: Path) -> np.ndarray:
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
            rank = begin[3]
            sizes = file.read(4 * rank)
            if len(sizes) < 4 * rank:
                raise DataError(
                    f"{path} is cut short: a header of {4 + 4 * rank} bytes was expected, found {4 + len(sizes)} bytes."
                )
            shape = tuple(int(n) for n in np.frombuffer(sizes, ">u4"))
            wanted, header = math.prod(shape), 4 + 4 * rank
            if packed:
                require_plausible(path, wanted, size, "Unpack it (gunzip) if that is right.")
            elif header + wanted != size:
                raise _other_size(path, shape, header + wanted, f"found {size}")
            values = np.empty(wanted, np.uint8)
            done = 0
            while done < wanted and (count := file.readinto(values[done : done + _CHUNK].data)):
                done += count
            if done < wanted or file.read(1):
                found = f"found {header + done}" if done < wanted else "there are more"
                raise _other_size(path, shape, header + wanted, found)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path} is damaged: {error}. Delete it and fetch it again.") from error
    try:
        return values.reshape(shape)
    except ValueError as error:  # NumPy has at most 64 dimensions
        raise DataError(f"{path} is damaged: {error}. Delete it and fetch it again.") from error


def _other_size(path: Path, shape: tuple[int, ...], expected: int, found: str) -> DataError:
    return DataError(
        f"{path} is damaged: its header says {list(shape)}, which makes {expected} bytes; {found}. "
        "Delete it and fetch it again."
    )
