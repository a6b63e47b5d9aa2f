"""load: every official layout, the order of places, damaged files, and the error that lists what was tried."""

from __future__ import annotations

import gzip
import os
import pickle
import struct
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from mirrorkit import data
from mirrorkit._keras import keras
from mirrorkit.data import sources
from mirrorkit.errors import DataError

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (30, 28, 28), dtype=np.uint8)
LABELS = np.arange(30, dtype=np.uint8) % 10
COLOURS = RNG.integers(0, 256, (20, 32, 32, 3), dtype=np.uint8)


@pytest.fixture(autouse=True)
def nowhere(monkeypatch, tmp_path):
    """No data anywhere, no network."""
    monkeypatch.delenv("MIRRORKIT_DATA", raising=False)
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "keras"))

    def offline():
        raise OSError("no network here")

    for name in ("mnist", "fashion_mnist", "cifar10", "cifar100"):
        monkeypatch.setattr(getattr(keras.datasets, name), "load_data", offline)


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
    for i, name in enumerate(
        ["data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch"]
    ):
        part = slice(3 * i, 3 * i + 3)
        rows = np.concatenate([LABELS[part, None], planes(COLOURS[part])], axis=1)
        (folder / f"{name}.bin").write_bytes(rows.tobytes())
    return folder


class OldPickler(pickle._Pickler):
    """Writes byte strings as Python 2 did, as CIFAR's own files hold them."""

    dispatch: ClassVar = dict(pickle._Pickler.dispatch)

    def save_bytes(self, value):
        self.write(pickle.BINSTRING + struct.pack("<i", len(value)) + value)
        self.memoize(value)

    dispatch[bytes] = save_bytes


def old_pickle(path: Path, content: object) -> None:
    with path.open("wb") as file:
        OldPickler(file, protocol=2).dump(content)


def write_cifar_python(folder: Path, *, write=old_pickle) -> Path:
    folder.mkdir(parents=True)
    for i, name in enumerate(
        ["data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch"]
    ):
        part = slice(3 * i, 3 * i + 3)
        write(folder / name, {b"data": planes(COLOURS[part]), b"labels": LABELS[part].tolist(), b"batch_label": b"x"})
    return folder


def check_mnist(loaded: data.DataSet) -> None:
    np.testing.assert_array_equal(loaded.train.images, IMAGES[:20, ..., None])
    np.testing.assert_array_equal(loaded.test.images, IMAGES[20:, ..., None])
    np.testing.assert_array_equal(loaded.train.labels, LABELS[:20])
    np.testing.assert_array_equal(loaded.test.labels, LABELS[20:])
    assert loaded.train.images.dtype == np.uint8
    assert loaded.train.labels.dtype == np.int64
    assert loaded.num_classes == len(loaded.class_names) == 10


def check_cifar(loaded: data.DataSet) -> None:
    np.testing.assert_array_equal(loaded.train.images, COLOURS[:15])
    np.testing.assert_array_equal(loaded.test.images, COLOURS[15:18])
    np.testing.assert_array_equal(loaded.train.labels, LABELS[:15])
    assert loaded.train.images.dtype == np.uint8
    assert loaded.train.labels.dtype == np.int64


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("below", [".", "mnist", "MNIST/raw"])
def test_mnist_idx_in_the_folder_or_below_its_parent(tmp_path, packed, below):
    folder = write_idx(tmp_path / below, packed=packed)
    loaded = data.load("mnist", data_dir=tmp_path)
    check_mnist(loaded)
    assert Path(loaded.source) == folder
    assert not loaded.synthetic


def test_mnist_npz(tmp_path):
    np.savez(tmp_path / "mnist.npz", x_train=IMAGES[:20], y_train=LABELS[:20], x_test=IMAGES[20:], y_test=LABELS[20:])
    check_mnist(data.load("mnist", data_dir=str(tmp_path)))


@pytest.mark.parametrize("write", [write_cifar_binary, write_cifar_python])
def test_cifar10_in_both_layouts(tmp_path, write):
    folder = write(tmp_path / ("cifar-10-batches-bin" if write is write_cifar_binary else "cifar-10-batches-py"))
    check_cifar(data.load("cifar10", data_dir=tmp_path))
    check_cifar(data.load("cifar10", data_dir=folder))


def test_cifar10_python_written_by_a_newer_python(tmp_path):
    def write(path: Path, content: object) -> None:
        path.write_bytes(pickle.dumps(content, protocol=4))

    check_cifar(data.load("cifar10", data_dir=write_cifar_python(tmp_path / "c", write=write)))


def test_cifar100_takes_the_fine_labels(tmp_path):
    fine = np.array([99, 3, 50], np.uint8)
    rows = np.concatenate([[[7]] * 3, fine[:, None], planes(COLOURS[:3])], axis=1).astype(np.uint8)
    binary = tmp_path / "a" / "cifar-100-binary"
    python = tmp_path / "b" / "cifar-100-python"
    for folder in (binary, python):
        folder.mkdir(parents=True)
    for name in ("train", "test"):
        (binary / f"{name}.bin").write_bytes(rows.tobytes())
        content = {b"data": planes(COLOURS[:3]), b"fine_labels": fine.tolist(), b"coarse_labels": [7] * 3}
        old_pickle(python / name, content)
    for parent in (tmp_path / "a", tmp_path / "b"):
        loaded = data.load("cifar100", data_dir=parent)
        np.testing.assert_array_equal(loaded.train.labels, fine)
        np.testing.assert_array_equal(loaded.train.images, COLOURS[:3])
        assert len(set(loaded.class_names)) == 100
        assert loaded.class_names[99] == "worm"


def test_order_of_places(tmp_path, monkeypatch):
    def place(name: str, shade: int) -> Path:
        return write_idx(tmp_path / name, images=np.full_like(IMAGES, shade))

    place("keras/datasets", 3)
    assert data.load("mnist").train.images.max() == 3
    monkeypatch.setenv("MIRRORKIT_DATA", str(place("environment/mnist", 2).parent))
    assert data.load("mnist").train.images.max() == 2
    assert data.load("mnist", data_dir=place("mine", 1)).train.images.max() == 1
    assert data.load("mnist", data_dir=tmp_path / "empty").train.images.max() == 2


def test_download_comes_last_and_is_put_into_form(monkeypatch):
    first = COLOURS.transpose(0, 3, 1, 2)  # as Keras gives it under channels_first
    monkeypatch.setattr(
        keras.datasets.cifar10, "load_data", lambda: ((first, LABELS[:20, None]), (first, LABELS[:20, None]))
    )
    loaded = data.load("cifar10")
    np.testing.assert_array_equal(loaded.train.images, COLOURS)
    np.testing.assert_array_equal(loaded.test.labels, LABELS[:20])
    assert loaded.source == "download"


def test_nothing_anywhere_lists_each_place_and_the_cure(tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("MIRRORKIT_DATA", str(tmp_path / "missing"))
    with pytest.raises(DataError) as caught:
        data.load("mnist", data_dir=tmp_path / "empty")
    message = str(caught.value)
    places = [
        "data_dir: " + str(tmp_path / "empty"),
        "$MIRRORKIT_DATA: no folder",
        "Keras cache: no folder",
        "no network here",
    ]
    for words in [*places, "mnist.npz", "data_dir=FOLDER", 'load("synthetic")']:
        assert words in message, words


def test_a_synthetic_set_stands_in_only_when_it_may(caplog):
    stand_in = data.load("cifar10", fallback="synthetic")
    assert stand_in.synthetic
    assert stand_in.train.images.shape[1:] == (32, 32, 3)
    assert "cifar10 was asked for and found nowhere" in caplog.text
    with pytest.raises(DataError, match="found nowhere"):
        data.load("cifar10")
    with pytest.raises(DataError, match="'synthetic', or None"):
        data.load("cifar10", fallback="mnist")


def test_unknown_name():
    with pytest.raises(DataError, match="mnist, fashion_mnist, cifar10, cifar100 and synthetic"):
        data.load("imagenet")
    assert data.load("synthetic").synthetic


def test_fashion_mnist_is_not_taken_for_mnist(tmp_path):
    digits = np.array([5, 0, 4, 1, 9, 2, 1, 3, 1, 4] * 3, np.uint8)  # as MNIST's training labels begin
    write_idx(tmp_path, labels=digits)
    assert data.load("mnist", data_dir=tmp_path).train.labels[0] == 5
    with pytest.raises(DataError, match="another set with the same file names"):
        data.load("fashion_mnist", data_dir=tmp_path)


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


def test_a_damaged_keras_cache_does_not_stop_the_download(tmp_path, monkeypatch):
    cache = tmp_path / "keras" / "datasets"
    cache.mkdir(parents=True)
    (cache / "mnist.npz").write_bytes(b"half")
    with pytest.raises(DataError, match=r"Keras cache: .*mnist.npz is damaged"):
        data.load("mnist")
    parts = (IMAGES[:20], LABELS[:20]), (IMAGES[20:], LABELS[20:])
    monkeypatch.setattr(keras.datasets.mnist, "load_data", lambda: parts)
    check_mnist(data.load("mnist"))


def test_a_silent_server_does_not_hang_the_program(monkeypatch):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def silent():
            return keras.utils.get_file("silent.bin", f"http://127.0.0.1:{port}/silent.bin")

        monkeypatch.setattr(keras.datasets.mnist, "load_data", silent)
        monkeypatch.setattr(sources, "_DOWNLOAD_SILENCE", 0.2)
        for proxy in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.delenv(proxy, raising=False)
        with pytest.raises(DataError, match="timed out"):
            data.load("mnist")
    assert socket.getdefaulttimeout() is None


real = pytest.mark.skipif("MIRRORKIT_DATA" not in os.environ, reason="needs real data: set MIRRORKIT_DATA")
REAL = os.environ.get("MIRRORKIT_DATA", "")


@pytest.mark.slow
@real
@pytest.mark.parametrize(
    ("name", "shape", "counts"), [("mnist", (28, 28, 1), (60000, 10000)), ("cifar10", (32, 32, 3), (50000, 10000))]
)
def test_real_data(name, shape, counts):
    loaded = data.load(name, data_dir=REAL)
    for split, count in zip((loaded.train, loaded.test), counts, strict=True):
        assert split.images.shape == (count, *shape)
        assert split.images.dtype == np.uint8
        assert split.labels.shape == (count,)
        assert split.labels.dtype == np.int64
        assert set(split.labels) == set(range(10))
    if name == "mnist":
        assert loaded.train.labels[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    else:
        assert (np.bincount(loaded.train.labels) == 5000).all()
