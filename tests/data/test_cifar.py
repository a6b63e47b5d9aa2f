"""CIFAR's two layouts: a file that is cut short, damaged or malicious is named, and nothing of it is run."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from source_files import COLOURS, LABELS, cut, old_pickle, planes, write_cifar_binary, write_cifar_python

from mirrorkit import data
from mirrorkit.data import cifar
from mirrorkit.errors import DataError

pytestmark = pytest.mark.usefixtures("nowhere")


@pytest.mark.parametrize("label_bytes", [1, 2])
def test_a_binary_file(tmp_path, label_bytes):
    path = tmp_path / "batch.bin"
    rows = np.concatenate([np.full((4, label_bytes - 1), 7), LABELS[:4, None], planes(COLOURS[:4])], axis=1)
    path.write_bytes(rows.astype(np.uint8).tobytes())
    images, labels = cifar.read_binary(path, label_bytes=label_bytes)
    np.testing.assert_array_equal(images, COLOURS[:4])
    np.testing.assert_array_equal(labels, LABELS[:4])
    assert (images.dtype, labels.dtype) == (np.uint8, np.int64)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ([1, 2], "is not a CIFAR file: it should hold 'data' and 'labels'"),
        ({b"data": planes(COLOURS[:2])}, "is not a CIFAR file"),
        ({b"data": [1, 2], b"labels": [1, 2]}, "'data' should be uint8 .* found list"),
        ({b"data": planes(COLOURS[:2]), b"labels": [0.5, 1.0]}, "'labels' should hold integers, found float64"),
    ],
)
def test_a_pickle_of_something_else_is_named(tmp_path, content, words):
    old_pickle(tmp_path / "batch", content)
    with pytest.raises(DataError, match=rf"batch.*{words}"):
        cifar.read_python(tmp_path / "batch")


def test_a_missing_file_is_the_systems_error(tmp_path):
    for read in (cifar.read_binary, cifar.read_python):
        with pytest.raises(FileNotFoundError):
            read(tmp_path / "batch")


def test_a_cut_cifar_binary_file_is_named(tmp_path):
    path = write_cifar_binary(tmp_path / "c") / "data_batch_3.bin"
    for kept, words in ((3073 * 3 - 1, "records of 3073 bytes"), (3073 * 2, "3 images were expected")):
        cut(path, to=kept)
        with pytest.raises(DataError, match=rf"data_batch_3\.bin.*{words}"):
            data.load("cifar10", data_dir=tmp_path / "c")


def test_a_cut_or_strange_cifar_pickle_is_named(tmp_path):
    path = write_cifar_python(tmp_path / "c") / "data_batch_2"
    cut(path, to=2000)
    with pytest.raises(DataError, match="data_batch_2 is damaged"):
        data.load("cifar10", data_dir=tmp_path / "c")
    old_pickle(path, {b"data": planes(COLOURS[:2]), b"labels": [1, 2, 3]})
    with pytest.raises(DataError, match=r"data_batch_2.*uint8 \[3, 3072\], one row per label; found uint8 \[2, 3072\]"):
        data.load("cifar10", data_dir=tmp_path / "c")


class Bomb:
    def __init__(self, target: Path):
        self.target = target

    def __reduce__(self):
        return os.mkdir, (str(self.target),)


@pytest.mark.parametrize("protocol", [2, 3, 4])
@pytest.mark.parametrize("dtype", ["<i8", ">i4", "u1"])
def test_a_pickle_that_python_3_wrote(tmp_path, protocol, dtype):
    pixels = np.asfortranarray(planes(COLOURS[:3]))
    content = {b"labels": LABELS[:3].astype(dtype), b"data": pixels, "names": ("a", None, True, 1.5, [], {})}
    if protocol > 2:  # where Python 3 writes bytes by a function, which no published file does
        (tmp_path / "batch").write_bytes(pickle.dumps(content, protocol=protocol))
    else:
        old_pickle(tmp_path / "batch", content)
    images, labels = cifar.read_python(tmp_path / "batch")
    np.testing.assert_array_equal(images, COLOURS[:3])
    np.testing.assert_array_equal(labels, LABELS[:3])


def text(value: bytes) -> bytes:
    return b"U" + bytes([len(value)]) + value  # SHORT_BINSTRING, as Python 2 wrote


ONE_LABEL = text(b"labels") + b"](K\x01eu."
BEGIN = b"\x80\x02}(" + text(b"data")
ARRAY = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n(I0\nt" + text(b"b") + b"\x87R"
PLAIN_STATE = b"(K\x03" + text(b"|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"


def array(dtype: bytes, state: bytes = PLAIN_STATE, shape: bytes = b"(K\x01t", content: bytes = b"\x00" * 8) -> bytes:
    made = b"cnumpy\ndtype\n" + text(dtype) + b"K\x00K\x01\x87R" + state
    return BEGIN + ARRAY + b"(K\x01" + shape + made + b"\x89" + text(content) + b"tb" + ONE_LABEL


FIELDS = b"(K\x03" + text(b"|") + b"N(" + text(b"a") + b"t}" + text(b"a") + b"(K\x08K\x00tsK\x08K\x01K?tb"


@pytest.mark.parametrize(
    ("pickled", "words"),
    [
        (array(b"V8"), "a dtype .'V8'. that is not an integer type"),
        (array(b"O8"), "a dtype .'O8'. that is not an integer type"),
        (array(b"f8"), "a dtype .'f8'. that is not an integer type"),
        (array(b"u8", FIELDS), "a dtype has fields or flags"),  # pointers, once the state was taken
        (array(b"u1", PLAIN_STATE.replace(b"NNN", b"NNK\x01")), "a dtype has fields or flags"),
        (array(b"u1", PLAIN_STATE.replace(b"K\x00tb", b"K?tb")), "a dtype has fields or flags"),
        (array(b"u1", b"(K\x03" + text(b"|") + b"tb"), "a dtype has fields or flags"),
        (array(b"u8", shape=b"(J\xff\xff\xff\xfft"), "no dtype and shape of whole numbers"),
        (
            array(b"u8", shape=b"(J\xff\xff\xff\x7ft"),
            r"uint64 \[2147483647\] has the wrong number of bytes \(8\)",
        ),
        (array(b"u8", shape=b"(K\x02t"), "has the wrong number of bytes"),
        (BEGIN + ARRAY + ONE_LABEL, "found NoneType"),
        (BEGIN + b"cnumpy\ndtype\n(lR" + ONE_LABEL, "makes a call that no CIFAR file needs"),
        (BEGIN + b"cnumpy\nndarray\n(K\x01tR" + ONE_LABEL, "makes a call that no CIFAR file needs"),
        (BEGIN + b"K\x01r\xff\xff\xff\x7f" + ONE_LABEL, "found int"),  # as a place in memory: 17 GB
        (b"\x80\x02}" + b")" + b"\x85" * 100_000 + b"K\x01s.", "a key is tuple, not text"),  # its hash: a crash
        (b"\x80\x02}(" + b"B\xff\xff\xff\x7f", "is damaged"),
        (b"\x80\x02]" + b"]" * 100_000 + b"a" * 100_000 + b".", "is not a CIFAR file"),
        (BEGIN + b"(iposix\nmkdir\nu.", "uses INST"),
        (BEGIN + b"K\x01", "is damaged"),
        (b"", "is damaged"),
    ],
    ids=lambda value: "" if isinstance(value, bytes) else None,
)
def test_a_forged_pickle_is_refused(tmp_path, pickled, words):
    (tmp_path / "batch").write_bytes(pickled)
    with pytest.raises(DataError, match=rf"batch.*{words}"):
        cifar.read_python(tmp_path / "batch")


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_malicious_pickle_is_refused_and_not_run(tmp_path, protocol):
    path = write_cifar_python(tmp_path / "c") / "data_batch_1"
    path.write_bytes(pickle.dumps({"data": Bomb(tmp_path / "harm"), "labels": [1]}, protocol=protocol))
    with pytest.raises(DataError, match=r"data_batch_1: the pickle asks for (posix|nt)\.mkdir"):
        data.load("cifar10", data_dir=tmp_path / "c")
    assert not (tmp_path / "harm").exists()
