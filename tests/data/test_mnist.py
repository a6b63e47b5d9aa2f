"""The files of MNIST: what is read; what is damaged is named."""

from __future__ import annotations

import gzip
import struct

import numpy as np
import pytest
from source_files import IMAGES, LABELS, idx_bytes

from mirrorkit import data
from mirrorkit.data import mnist
from mirrorkit.errors import DataError


@pytest.mark.parametrize("array", [IMAGES, LABELS, IMAGES[0], np.zeros((0, 3), np.uint8)], ids=lambda a: str(a.shape))
@pytest.mark.parametrize("packed", [False, True])
def test_an_idx_array_comes_back_writable(tmp_path, array, packed):
    path = tmp_path / ("array.gz" if packed else "array")
    path.write_bytes(gzip.compress(idx_bytes(array)) if packed else idx_bytes(array))
    got = mnist.read_idx(path, array.ndim)
    assert got.dtype == np.uint8
    assert got.flags.writeable
    np.testing.assert_array_equal(got, array)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "found nothing"),
        (b"\0\0\x0d\x01", "found 00 00 0d 01"),
        (idx_bytes(IMAGES), "found 00 00 08 03"),
        (b"\0\0\x08\x01\0\0", "buffer"),
        (idx_bytes(LABELS)[:-1], "size 29 .*30"),
        (idx_bytes(LABELS) + b"\0", "size 31 .*30"),
        (bytes([0, 0, 8, 1]) + struct.pack(">I", 2**32 - 1) + bytes(4), "size 4 "),
    ],
)
def test_a_file_that_is_not_what_its_header_says_is_named(tmp_path, content, words):
    path = tmp_path / "array"
    path.write_bytes(content)
    with pytest.raises(DataError, match=rf"array is damaged: .*{words}"):
        mnist.read_idx(path, 1)


def test_a_flipped_byte_in_a_gzip_file_is_found(tmp_path):
    content = bytearray(gzip.compress(idx_bytes(IMAGES)))
    content[-6] ^= 1  # of the checksum of what was packed
    (tmp_path / "array.gz").write_bytes(content)
    with pytest.raises(DataError, match=r"array\.gz is damaged: .*CRC"):
        mnist.read_idx(tmp_path / "array.gz", 3)
    with pytest.raises(FileNotFoundError):
        mnist.read_idx(tmp_path / "array", 3)


def write_npz(folder, **changes):
    arrays = {"x_train": IMAGES[:20], "y_train": LABELS[:20], "x_test": IMAGES[20:], "y_test": LABELS[20:]}
    np.savez_compressed(folder / "mnist.npz", **arrays | changes)


@pytest.mark.usefixtures("nowhere")
def test_objects_are_not_unpickled_and_labels_are_integers(tmp_path):
    write_npz(tmp_path, y_train=np.array([{}] * 20, object))
    with pytest.raises(DataError, match=r"mnist\.npz is damaged: .*Object arrays"):
        data.load("mnist", data_dir=tmp_path)
    write_npz(tmp_path, y_train=LABELS[:20].astype("float32"))
    with pytest.raises(DataError, match="float labels"):
        data.load("mnist", data_dir=tmp_path)
