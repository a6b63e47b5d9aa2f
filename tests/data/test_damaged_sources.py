"""load: a file that is cut, damaged or malicious is named, and nothing of it is run."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from source_files import (
    COLOURS,
    IMAGES,
    LABELS,
    idx_bytes,
    old_pickle,
    planes,
    write_cifar_binary,
    write_cifar_python,
    write_idx,
)

from mirrorkit import data
from mirrorkit.errors import DataError

pytestmark = pytest.mark.usefixtures("nowhere")


def cut(path: Path, *, to: int) -> None:
    path.write_bytes(path.read_bytes()[:to])


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("kept", [0, 3, 10, 1000])
def test_a_cut_idx_file_is_named(tmp_path, packed, kept):
    write_idx(tmp_path, packed=packed)
    path = tmp_path / ("t10k-images-idx3-ubyte" + (".gz" if packed else ""))
    cut(path, to=kept)
    with pytest.raises(DataError, match=path.name):
        data.load("mnist", data_dir=tmp_path)


def test_an_idx_file_with_bytes_too_many_or_of_another_kind_is_named(tmp_path):
    path = write_idx(tmp_path) / "train-labels-idx1-ubyte"
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(DataError, match=r"train-labels-idx1-ubyte is damaged.*28 bytes; found 29"):
        data.load("mnist", data_dir=tmp_path)
    path.write_bytes(b"<html>not found</html>")
    with pytest.raises(DataError, match="train-labels-idx1-ubyte is no IDX file"):
        data.load("mnist", data_dir=tmp_path)
    path.write_bytes(idx_bytes(IMAGES[:20]))
    with pytest.raises(DataError, match="train-labels-idx1-ubyte should hold an array of 1 dim"):
        data.load("mnist", data_dir=tmp_path)


def test_images_and_labels_of_different_lengths_or_outside_the_classes(tmp_path):
    path = write_idx(tmp_path) / "train-labels-idx1-ubyte"
    path.write_bytes(idx_bytes(LABELS[:19]))
    with pytest.raises(DataError, match="20 images and 19 labels"):
        data.load("mnist", data_dir=tmp_path)
    path.write_bytes(idx_bytes(LABELS[:20] + 1))
    with pytest.raises(DataError, match=r"0 .. 9; found 1 .. 10"):
        data.load("mnist", data_dir=tmp_path)


def test_a_damaged_npz_is_named(tmp_path):
    np.savez(tmp_path / "mnist.npz", x_train=IMAGES)
    with pytest.raises(DataError, match=r"mnist.npz is damaged: it should hold x_train, y_train"):
        data.load("mnist", data_dir=tmp_path)
    cut(tmp_path / "mnist.npz", to=100)
    with pytest.raises(DataError, match=r"mnist.npz is damaged"):
        data.load("mnist", data_dir=tmp_path)


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
