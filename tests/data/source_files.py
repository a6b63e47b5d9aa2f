"""Files as MNIST and CIFAR-10 are published, small and with known contents."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np

from mirrorkit import data

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (30, 28, 28), dtype=np.uint8)
LABELS = np.arange(30, dtype=np.uint8) % 10
COLOURS = RNG.integers(0, 256, (20, 32, 32, 3), dtype=np.uint8)
BATCHES = {f"data_batch_{i + 1}" if i < 5 else "test_batch": slice(3 * i, 3 * i + 3) for i in range(6)}


def cut(path: Path, *, to: int) -> None:
    path.write_bytes(path.read_bytes()[:to])


def idx_bytes(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_idx(folder: Path, *, packed: bool = False, images: np.ndarray = IMAGES, labels: np.ndarray = LABELS) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for which, part in (("train", slice(0, 20)), ("t10k", slice(20, 30))):
        for kind, array in (("images-idx3", images[part]), ("labels-idx1", labels[part])):
            content = idx_bytes(array)
            name = f"{which}-{kind}-ubyte" + (".gz" if packed else "")
            (folder / name).write_bytes(gzip.compress(content) if packed else content)
    return folder


def planes(images: np.ndarray) -> np.ndarray:
    return images.transpose(0, 3, 1, 2).reshape(len(images), -1)


def write_cifar_binary(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for name, part in BATCHES.items():
        rows = np.concatenate([LABELS[part, None], planes(COLOURS[part])], axis=1)
        (folder / f"{name}.bin").write_bytes(rows.tobytes())
    return folder


def check_mnist(loaded: data.Splits) -> None:
    np.testing.assert_array_equal(loaded.train.images, IMAGES[:20, ..., None])
    np.testing.assert_array_equal(loaded.test.images, IMAGES[20:, ..., None])
    np.testing.assert_array_equal(loaded.train.labels, LABELS[:20])
    np.testing.assert_array_equal(loaded.test.labels, LABELS[20:])
    assert loaded.train.images.dtype == np.uint8
    assert loaded.train.labels.dtype == np.int64
    assert loaded.num_classes == len(loaded.class_names) == 10


def check_cifar(loaded: data.Splits) -> None:
    np.testing.assert_array_equal(loaded.train.images, COLOURS[:15])
    np.testing.assert_array_equal(loaded.test.images, COLOURS[15:18])
    np.testing.assert_array_equal(loaded.train.labels, LABELS[:15])
    assert loaded.train.images.dtype == np.uint8
    assert loaded.train.labels.dtype == np.int64


def record_header(length: int) -> bytes:
    """The length of a TFRecord and its checksum, a masked CRC-32C."""
    header, crc = struct.pack("<Q", length), 0xFFFFFFFF
    for byte in header:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return header + struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32)
