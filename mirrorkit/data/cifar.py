"""Readers of CIFAR-10 and CIFAR-100 in the two layouts that their authors publish: "binary" and "python".

The layouts: https://www.cs.toronto.edu/~kriz/cifar.html. Images come out as uint8 [N, 32, 32, 3].
"""

from __future__ import annotations

import hashlib
import pickle
from pathlib import Path

import numpy as np

from mirrorkit.data.disk import damage_named
from mirrorkit.errors import DataError

Half = tuple[np.ndarray, np.ndarray]  # images and labels

_PIXELS = 3 * 32 * 32
# The files of the "python" layout and their MD5, as in torchvision.datasets.CIFAR10 and CIFAR100; the last is the test
# set. Unpickling can run code, so only these are unpickled. Nobody can make another file with the MD5 of a given one.
_MD5 = {
    10: {
        "data_batch_1": "c99cafc152244af753f735de768cd75f",
        "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
        "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
        "data_batch_4": "634d18415352ddfa80567beed471001a",
        "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
        "test_batch": "40351d587109b95175f43aff81a1287e",
    },
    100: {"train": "16019d7e3df5f24257cddd939b257f8d", "test": "f0ef6b0ae62326f3e7ffdfab6717acfc"},
}


def read_binary(folder: Path, *, classes: int) -> tuple[Half, Half]:
    """Read the "binary" files of CIFAR-10 or CIFAR-100 in a folder: (images, labels) for training and for testing.

    Raises:
        FileNotFoundError: one of them is missing.
        DataError: one of them is cut short.
    """
    paths = [folder / f"{name}.bin" for name in _MD5[classes]]
    pieces = [_records(path, label_bytes=1 if classes == 10 else 2) for path in paths]
    counts = [len(labels) for _, labels in pieces]
    if classes == 10 and min(counts) < max(counts):  # cut exactly between two records
        raise DataError(
            f"{paths[counts.index(min(counts))]} is cut short: {max(counts)} images were expected, as in the other "
            f"files; found {min(counts)}. Fetch it again."
        )
    return _halves(pieces)


def read_python(folder: Path, *, classes: int) -> tuple[Half, Half]:
    """Read the "python" files, which are pickles, if they are those that were published.

    Raises:
        FileNotFoundError: one of them is missing.
        DataError: one of them is another file.
    """
    label_key = b"labels" if classes == 10 else b"fine_labels"
    pieces = []
    for name, published in _MD5[classes].items():
        with damage_named(folder / name):
            pickled = (folder / name).read_bytes()
        found = hashlib.md5(pickled, usedforsecurity=False).hexdigest()
        if found != published:
            raise DataError(
                f"{folder / name} is not the published file: its MD5 is {found}, not {published}. It is a pickle, "
                "which can run code, so it is not read. Fetch it again, or take the binary layout "
                f"(cifar-{classes}-binary.tar.gz). Give other data to mk.data.arrays(images, labels)."
            )
        content = pickle.loads(pickled, encoding="bytes")
        pieces.append((_images(content[b"data"]), np.asarray(content[label_key])))
    return _halves(pieces)


def _records(path: Path, label_bytes: int) -> Half:
    """Read records of `label_bytes` label bytes, of which the last counts, and 3072 pixels."""
    with damage_named(path):
        records = np.fromfile(path, np.uint8).reshape(-1, label_bytes + _PIXELS)
    return _images(records[:, label_bytes:]), records[:, label_bytes - 1]


def _images(planes: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(planes.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))


def _halves(pieces: list[Half]) -> tuple[Half, Half]:
    """Join the pieces of the training set; the last one is the test set."""
    images, labels = (np.concatenate(arrays) for arrays in zip(*pieces[:-1], strict=True))
    return (images, labels), pieces[-1]
