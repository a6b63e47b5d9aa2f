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


@pytest.mark.parametrize("read", [cifar.read_binary, cifar.read_python])
def test_a_missing_file_is_the_systems_error(tmp_path, read):
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "batch")


@pytest.mark.parametrize(
    ("kept", "words"), [(3073 * 3 - 1, "records of 3073 bytes"), (3073 * 2, "3 images were expected")]
)
def test_a_cut_cifar_binary_file_is_named(tmp_path, kept, words):
    cut(write_cifar_binary(tmp_path / "c") / "data_batch_3.bin", to=kept)
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


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_malicious_pickle_is_refused_and_not_run(tmp_path, protocol):
    path = write_cifar_python(tmp_path / "c") / "data_batch_1"
    path.write_bytes(pickle.dumps({"data": Bomb(tmp_path / "harm"), "labels": [1]}, protocol=protocol))
    with pytest.raises(DataError, match=r"data_batch_1: the pickle asks for (posix|nt)\.mkdir"):
        data.load("cifar10", data_dir=tmp_path / "c")
    assert not (tmp_path / "harm").exists()
