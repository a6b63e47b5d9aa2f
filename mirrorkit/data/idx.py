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

from mirrorkit.errors import DataError

_UNSIGNED_BYTE = 8


def read(path: Path) -> np.ndarray:
    """Read the array in an IDX file of unsigned bytes: uint8, with the shape that its header gives."""
    content = path.read_bytes()
    try:
        content = gzip.decompress(content) if path.suffix == ".gz" else content
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path} is damaged: {error}. Delete it and fetch it again.") from error
    if len(content) < 4 or content[:3] != bytes([0, 0, _UNSIGNED_BYTE]) or content[3] == 0:
        raise DataError(
            f"{path} is not an IDX file of unsigned bytes: it should begin with 00 00 08, found "
            f"{content[:4].hex(' ') or 'nothing'}. Fetch it again."
        )
    header = 4 + 4 * content[3]
    if len(content) < header:
        raise DataError(f"{path} is cut short: a header of {header} bytes was expected, found {len(content)} bytes.")
    shape = tuple(int(n) for n in np.frombuffer(content, ">u4", content[3], 4))
    expected = header + math.prod(shape)
    if len(content) != expected:
        raise DataError(
            f"{path} is damaged: its header says {list(shape)}, which makes {expected} bytes; found {len(content)}. "
            "Delete it and fetch it again."
        )
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape).copy()  # writable, as users expect
