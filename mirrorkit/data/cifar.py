"""Reader of CIFAR-10 and CIFAR-100 in the layout that their authors call "binary".

The layouts: https://www.cs.toronto.edu/~kriz/cifar.html. Images come out as uint8 [N, 32, 32, 3].
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from mirrorkit.data.disk import damage_named
from mirrorkit.errors import DataError

Half = tuple[np.ndarray, np.ndarray]  # images and labels

_PIXELS = 3 * 32 * 32
# the last one is the test set
_FILES = {10: (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"), 100: ("train", "test")}


def read_binary(folder: Path, *, classes: int) -> tuple[Half, Half]:
    """Read the "binary" files of CIFAR-10 or CIFAR-100 in a folder: (images, labels) for training and for testing.

    Raises:
        FileNotFoundError: one of them is missing.
        DataError: one of them is cut short.
    """
    paths = [folder / f"{name}.bin" for name in _FILES[classes]]
    pieces = [_records(path, label_bytes=1 if classes == 10 else 2) for path in paths]
    counts = [len(labels) for _, labels in pieces]
    if classes == 10 and min(counts) < max(counts):  # cut exactly between two records
        raise DataError(
            f"{paths[counts.index(min(counts))]} is cut short: {max(counts)} images were expected, as in the other "
            f"files; found {min(counts)}. Fetch it again."
        )
    images, labels = (np.concatenate(arrays) for arrays in zip(*pieces[:-1], strict=True))
    return (images, labels), pieces[-1]


def _records(path: Path, label_bytes: int) -> Half:
    """Read records of `label_bytes` label bytes, of which the last counts, and 3072 pixels."""
    with damage_named(path):
        records = np.fromfile(path, np.uint8).reshape(-1, label_bytes + _PIXELS)
    planes = records[:, label_bytes:].reshape(-1, 3, 32, 32)
    return np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), records[:, label_bytes - 1]
