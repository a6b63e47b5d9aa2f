"""idx.read: what it reads, and a file that is cut short or damaged is named."""

from __future__ import annotations

import gzip
import struct

import numpy as np
import pytest
from source_files import IMAGES, LABELS, cut, idx_bytes, write_idx

from mirrorkit import data
from mirrorkit.data import idx
from mirrorkit.errors import DataError


@pytest.mark.parametrize("array", [IMAGES, LABELS, IMAGES[0], np.zeros((0, 3), np.uint8)], ids=lambda a: str(a.shape))
@pytest.mark.parametrize("packed", [False, True])
def test_an_array_comes_back_writable(tmp_path, array, packed):
    path = tmp_path / ("array.gz" if packed else "array")
    path.write_bytes(gzip.compress(idx_bytes(array)) if packed else idx_bytes(array))
    got = idx.read(path)
    assert got.dtype == np.uint8
    assert got.flags.writeable
    np.testing.assert_array_equal(got, array)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "found nothing"),
        (b"\0\0\x0d\x01", "begin with 00 00 08, found 00 00 0d 01"),
        (b"\0\0\x08\x00", "is not an IDX file"),
        (b"\0\0\x08\x02\0\0", "a header of 12 bytes was expected, found 6"),
        (idx_bytes(LABELS)[:-1], r"its header says \[30\], which makes 38 bytes; found 37"),
    ],
)
def test_a_file_that_is_not_what_its_header_says_is_named(tmp_path, content, words):
    path = tmp_path / "array"
    path.write_bytes(content)
    with pytest.raises(DataError, match=rf"array .*{words}"):
        idx.read(path)


def test_a_header_is_compared_with_the_file_before_anything_is_made(tmp_path, monkeypatch):
    monkeypatch.setattr(idx.np, "empty", lambda *_: pytest.fail("memory was taken"))
    for name, words in (
        ("array", "makes 4294836237 bytes; found 16"),
        ("array.gz", "they become 4294836225, more than"),
    ):
        content = bytes([0, 0, 8, 2]) + struct.pack(">2I", 65535, 65535) + bytes(4)
        (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
        with pytest.raises(DataError, match=words):
            idx.read(tmp_path / name)


@pytest.mark.parametrize("rank", [65, 255])
def test_more_dimensions_than_an_array_has_are_named(tmp_path, rank):
    (tmp_path / "array").write_bytes(bytes([0, 0, 8, rank]) + struct.pack(f">{rank}I", *[1] * rank) + b"x")
    with pytest.raises(DataError, match="array is damaged: maximum supported dimension"):
        idx.read(tmp_path / "array")


def test_a_gzip_file_that_becomes_more_than_its_header_says_is_read_no_further(tmp_path):
    (tmp_path / "array.gz").write_bytes(gzip.compress(idx_bytes(np.zeros(4, np.uint8)) + bytes(2**24)))
    with pytest.raises(DataError, match=r"header says \[4\], which makes 12 bytes; there are more"):
        idx.read(tmp_path / "array.gz")


def test_a_gzip_file_that_is_none_is_named(tmp_path):
    path = tmp_path / "array.gz"
    path.write_bytes(idx_bytes(LABELS))
    with pytest.raises(DataError, match=r"array\.gz is damaged: Not a gzipped file"):
        idx.read(path)


def test_a_missing_file_is_the_systems_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        idx.read(tmp_path / "array")


@pytest.mark.usefixtures("nowhere")
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("kept", [0, 3, 10, 1000])
def test_a_cut_idx_file_is_named(tmp_path, packed, kept):
    write_idx(tmp_path, packed=packed)
    path = tmp_path / ("t10k-images-idx3-ubyte" + (".gz" if packed else ""))
    cut(path, to=kept)
    with pytest.raises(DataError, match=path.name):
        data.load("mnist", data_dir=tmp_path)


@pytest.mark.usefixtures("nowhere")
def test_an_idx_file_with_bytes_too_many_or_of_another_kind_is_named(tmp_path):
    path = write_idx(tmp_path) / "train-labels-idx1-ubyte"
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(DataError, match=r"train-labels-idx1-ubyte is damaged.*28 bytes; found 29"):
        data.load("mnist", data_dir=tmp_path)
    path.write_bytes(b"<html>not found</html>")
    with pytest.raises(DataError, match="train-labels-idx1-ubyte is not an IDX file"):
        data.load("mnist", data_dir=tmp_path)
    path.write_bytes(idx_bytes(IMAGES[:20]))
    with pytest.raises(DataError, match="train-labels-idx1-ubyte should hold an array of 1 dim"):
        data.load("mnist", data_dir=tmp_path)
