"""The files of MNIST: what is read; what is damaged is named, and no header believed before a look at the file."""

from __future__ import annotations

import gzip
import io
import struct
import zipfile

import numpy as np
import pytest
from source_files import IMAGES, LABELS, cut, idx_bytes, write_idx

from mirrorkit import data
from mirrorkit.data import mnist
from mirrorkit.errors import DataError


@pytest.mark.parametrize("array", [IMAGES, LABELS, IMAGES[0], np.zeros((0, 3), np.uint8)], ids=lambda a: str(a.shape))
@pytest.mark.parametrize("packed", [False, True])
def test_an_idx_array_comes_back_writable(tmp_path, array, packed):
    path = tmp_path / ("array.gz" if packed else "array")
    path.write_bytes(gzip.compress(idx_bytes(array)) if packed else idx_bytes(array))
    got = mnist.read_idx(path)
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
        mnist.read_idx(path)


def test_a_header_is_compared_with_the_file_before_anything_is_made(tmp_path, monkeypatch):
    monkeypatch.setattr(mnist.np, "empty", lambda *_: pytest.fail("memory was taken"))
    for name, words in (
        ("array", "makes 4294836237 bytes; found 16"),
        ("array.gz", "claims to expand to 4294836225, more than"),
    ):
        content = bytes([0, 0, 8, 2]) + struct.pack(">2I", 65535, 65535) + bytes(4)
        (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
        with pytest.raises(DataError, match=words):
            mnist.read_idx(tmp_path / name)


@pytest.mark.parametrize("rank", [65, 255])
def test_more_dimensions_than_an_array_has_are_named(tmp_path, rank):
    (tmp_path / "array").write_bytes(bytes([0, 0, 8, rank]) + struct.pack(f">{rank}I", *[1] * rank) + b"x")
    with pytest.raises(DataError, match="array is damaged: maximum supported dimension"):
        mnist.read_idx(tmp_path / "array")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (idx_bytes(LABELS), r"array\.gz is damaged: Not a gzipped file"),
        # which is read no further
        (
            gzip.compress(idx_bytes(np.zeros(4, np.uint8)) + bytes(2**24)),
            r"\[4\], which makes 12 bytes; there are more",
        ),
    ],
)
def test_a_gzip_file_that_is_none_or_becomes_more_than_its_header_says(tmp_path, content, words):
    (tmp_path / "array.gz").write_bytes(content)
    with pytest.raises(DataError, match=words):
        mnist.read_idx(tmp_path / "array.gz")
    with pytest.raises(FileNotFoundError):
        mnist.read_idx(tmp_path / "array")


@pytest.mark.usefixtures("nowhere")
@pytest.mark.parametrize(("packed", "kept"), [(False, 0), (False, 10), (False, 1000), (True, 3), (True, 1000)])
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


ARRAYS = {"x": np.arange(24, dtype=np.uint8).reshape(2, 3, 4), "y": np.asfortranarray(np.arange(6).reshape(2, 3))}


def npy(array) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def write_npz(path, method=zipfile.ZIP_DEFLATED, **members: bytes):
    with zipfile.ZipFile(path, "w", method) as file:
        for name, content in members.items():
            file.writestr(f"{name}.npy", content)
    return path


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_come_as_they_were_saved_and_can_be_written_to(tmp_path, save):
    save(tmp_path / "a.npz", **ARRAYS)
    for found, array in zip(mnist.read_npz(tmp_path / "a.npz", ("x", "y")), ARRAYS.values(), strict=True):
        np.testing.assert_array_equal(found, array)
        assert found.dtype == array.dtype
        found[0] = 1


def test_what_claims_to_become_far_more_than_it_is_takes_no_memory(tmp_path, monkeypatch):
    path = write_npz(tmp_path / "a.npz", x=npy(np.zeros(150 << 20, np.uint8)))
    monkeypatch.setattr(mnist, "_read_member", lambda *_: pytest.fail("it was read"))
    with pytest.raises(DataError, match=r"a\.npz has \d+ bytes and claims to expand to 157286\d+"):
        mnist.read_npz(path, ("x",))


@pytest.mark.parametrize(
    ("member", "words"),
    [
        (npy(np.zeros(3, np.uint8))[:-1], "has 130 bytes for uint8"),
        (npy(np.zeros(3, np.uint8)).replace(b"(3,)", b"(2**9,)"), "malformed"),
        (npy(np.zeros(3, np.uint8)).replace(b"(3,), }    ", b"(3333333,),}"), "132 bytes for uint8 .3333333."),
        (npy(np.zeros(3)), "for float64"),
        (b"junk", "magic string"),
    ],
)
def test_damage_to_an_npz_file_is_named(tmp_path, member, words):
    with pytest.raises(DataError, match=rf"a\.npz is damaged: it should hold x;.*{words}"):
        mnist.read_npz(write_npz(tmp_path / "a.npz", x=member), ("x",))


def test_objects_and_other_compression_are_refused(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.array([{}], object))
    with pytest.raises(DataError, match="for object"):
        mnist.read_npz(tmp_path / "a.npz", ("x",))
    with pytest.raises(DataError, match="its compression is not deflate"):
        mnist.read_npz(write_npz(tmp_path / "b.npz", zipfile.ZIP_LZMA, x=npy(ARRAYS["x"])), ("x",))
