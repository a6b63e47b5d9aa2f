"""CIFAR's two layouts: a file that is cut short is named, and only the published pickles are unpickled."""

from __future__ import annotations

import hashlib
import os
import pickle
from pathlib import Path

import pytest
from source_files import cut, publish, write_cifar_binary, write_cifar_python

from mirrorkit import data
from mirrorkit.data import cifar
from mirrorkit.errors import DataError

pytestmark = pytest.mark.usefixtures("nowhere")


def test_a_cut_binary_file_is_named(tmp_path):
    path = write_cifar_binary(tmp_path / "c") / "data_batch_3.bin"
    for kept, words in ((3073 * 3 - 1, "3073"), (3073 * 2, "3 images"), (0, "found 0")):
        cut(path, to=kept)
        with pytest.raises(DataError, match=rf"data_batch_3\.bin.*{words}"):
            data.load("cifar10", data_dir=tmp_path / "c")


@pytest.fixture
def published(tmp_path, monkeypatch):
    folder = write_cifar_python(tmp_path / "c")
    publish(folder, 10, monkeypatch)
    return folder


def test_a_cut_or_exchanged_pickle_is_refused_with_the_cure(published):
    cut(published / "data_batch_2", to=2000)
    with pytest.raises(DataError, match=r"data_batch_2 is not .*MD5.*binary layout"):
        data.load("cifar10", data_dir=published)
    (published / "data_batch_2").write_bytes((published / "data_batch_3").read_bytes())
    with pytest.raises(DataError, match="data_batch_2 is not the published file"):
        data.load("cifar10", data_dir=published)


class Bomb:
    def __init__(self, target: Path):
        self.target = target

    def __reduce__(self):
        return os.mkdir, (str(self.target),)


def test_a_malicious_pickle_is_not_run(tmp_path, published):
    (published / "test_batch").write_bytes(pickle.dumps({"data": Bomb(tmp_path / "harm"), "labels": [1]}))
    with pytest.raises(DataError, match="test_batch is not the published file"):
        data.load("cifar10", data_dir=published)
    assert not (tmp_path / "harm").exists()


def test_what_the_published_digests_are():
    """Those that torchvision.datasets lists; nothing else may be unpickled."""
    files = {**cifar._MD5[10], **cifar._MD5[100]}
    together = hashlib.sha256("".join(f"{name} {files[name]}\n" for name in sorted(files)).encode())
    assert len(files) == 8
    assert together.hexdigest() == "6da148665ff55633db6242e159aa21c51a537898418292faf54e3f0d67cd6cd3"
