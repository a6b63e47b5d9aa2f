"""Readers of the files of MNIST and Fashion-MNIST: IDX, plain or gzip, and mnist.npz.

IDX: https://yann.lecun.com/exdb/mnist/ (two zero bytes, a type code, the number of dimensions, then each dimension as a
big-endian 32-bit number, then the values).
"""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np

from mirrorkit.data.disk import damage_named

Half = tuple[np.ndarray, np.ndarray]  # images and labels

_UNSIGNED_BYTE = 8


def read_idx_files(folder: Path) -> tuple[Half, Half]:
    """Read the four IDX files in a folder: (images, labels) for training and for testing.

    Raises:
        FileNotFoundError: one of them is missing.
        DataError: one of them is cut short or damaged.
    """
    train, test = (
        (read_idx(_path(folder, f"{part}-images-idx3"), 3), read_idx(_path(folder, f"{part}-labels-idx1"), 1))
        for part in ("train", "t10k")
    )
    return train, test


def read_npz(folder: Path) -> tuple[Half, Half]:
    """Read mnist.npz in a folder; see `read_idx_files`."""
    path = folder / "mnist.npz"
    with damage_named(path), np.load(path, allow_pickle=False) as file:
        return (file["x_train"], file["y_train"]), (file["x_test"], file["y_test"])


def read_idx(path: Path, rank: int) -> np.ndarray:
    """Read an array of `rank` dimensions from an IDX file of unsigned bytes: uint8."""
    with damage_named(path), gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        content = bytearray(file.read())  # writable, as users expect
        begin = bytes([0, 0, _UNSIGNED_BYTE, rank])
        if content[:4] != begin:
            found = content[:4].hex(" ") or "nothing"
            raise ValueError(f"an IDX file of bytes in {rank} dimensions begins with {begin.hex(' ')}, found {found}")
        shape = np.frombuffer(content, ">u4", rank, 4)
        return np.frombuffer(content, np.uint8, offset=4 + 4 * rank).reshape(shape)


def _path(folder: Path, stem: str) -> Path:
    for name in (stem, stem.replace("-idx", ".idx")):  # some programs unpack them with a dot
        for end in ("-ubyte", "-ubyte.gz"):
            if (folder / (name + end)).is_file():
                return folder / (name + end)
    raise FileNotFoundError(f"{folder}/{stem}-ubyte")
