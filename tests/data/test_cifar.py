"""CIFAR's two layouts: a file that is cut short is named, and only the published pickles are unpickled."""

from __future__ import annotations

import hashlib
import os
import pickle
import warnings
from pathlib import Path

import numpy as np
import pytest
from source_files import COLOURS, LABELS, cut, planes, publish, write_cifar_binary, write_cifar_python

from mirrorkit import data
from mirrorkit.data import cifar
from mirrorkit.errors import DataError

pytestmark = pytest.mark.usefixtures("nowhere")


def test_the_second_label_byte_of_cifar100_counts(tmp_path):
    rows = np.concatenate([np.full((4, 1), 7), LABELS[:4, None], planes(COLOURS[:4])], axis=1).astype(np.uint8)
    for name, part in (("train.bin", rows[:3]), ("test.bin", rows[3:])):
        (tmp_path / name).write_bytes(part.tobytes())
    (images, labels), (test_images, test_labels) = cifar.read_binary(tmp_path, classes=100)
    np.testing.assert_array_equal(images, COLOURS[:3])
    np.testing.assert_array_equal(labels, LABELS[:3])
    np.testing.assert_array_equal(test_images, COLOURS[3:4])
    np.testing.assert_array_equal(test_labels, LABELS[3:4])
    assert images.dtype == np.uint8


def test_a_cut_binary_file_is_named(tmp_path):
    path = write_cifar_binary(tmp_path / "c") / "data_batch_3.bin"
    for kept, words in ((3073 * 3 - 1, r"shape \(3073\)"), (3073 * 2, "3 images were expected"), (0, "found 0")):
        cut(path, to=kept)
        with pytest.raises(DataError, match=rf"data_batch_3\.bin.*{words}.*etch it again"):
            data.load("cifar10", data_dir=tmp_path / "c")


@pytest.fixture
def published(tmp_path, monkeypatch):
    folder = write_cifar_python(tmp_path / "c")
    publish(folder, 10, monkeypatch)
    return folder


def test_published_pickles_are_read_without_a_warning(published):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (images, labels), (test_images, _) = cifar.read_python(published, classes=10)
    np.testing.assert_array_equal(images, COLOURS[:15])
    np.testing.assert_array_equal(labels, LABELS[:15])
    np.testing.assert_array_equal(test_images, COLOURS[15:18])


def test_a_cut_or_exchanged_pickle_is_refused_with_the_cure(published):
    cut(published / "data_batch_2", to=2000)
    cures = r"Fetch it again.*binary layout \(cifar-10-binary\.tar\.gz\).*mk\.data\.arrays"
    with pytest.raises(DataError, match=rf"data_batch_2 is not the published file: its MD5 is .*{cures}"):
        data.load("cifar10", data_dir=published)
    (published / "data_batch_2").write_bytes((published / "data_batch_3").read_bytes())
    with pytest.raises(DataError, match="data_batch_2 is not the published file"):
        data.load("cifar10", data_dir=published)


class Bomb:
    def __init__(self, target: Path):
        self.target = target

    def __reduce__(self):
        return os.mkdir, (str(self.target),)


@pytest.mark.parametrize("name", ["data_batch_1", "test_batch"])
def test_a_malicious_pickle_is_not_run(tmp_path, published, name):
    (published / name).write_bytes(pickle.dumps({"data": Bomb(tmp_path / "harm"), "labels": [1]}))
    with pytest.raises(DataError, match=f"{name} is not the published file"):
        data.load("cifar10", data_dir=published)
    assert not (tmp_path / "harm").exists()


def test_what_the_published_digests_are():
    """Those that torchvision.datasets lists; nothing else may be unpickled."""
    files = {**cifar._MD5[10], **cifar._MD5[100]}
    together = hashlib.sha256("".join(f"{name} {files[name]}\n" for name in sorted(files)).encode())
    assert len(files) == 8
    assert together.hexdigest() == "6da148665ff55633db6242e159aa21c51a537898418292faf54e3f0d67cd6cd3"
