"""load: every official layout, the order of places, and files that are damaged."""

from __future__ import annotations

import gzip
import struct
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from source_files import (
    COLOURS,
    IMAGES,
    LABELS,
    check_cifar,
    check_mnist,
    cut,
    idx_bytes,
    planes,
    write_cifar_binary,
    write_idx,
)

from mirrorkit import data
from mirrorkit._keras import keras
from mirrorkit.data import mnist, sources
from mirrorkit.errors import DataError, FileError

pytestmark = pytest.mark.usefixtures("nowhere", "few_digits")


@pytest.fixture
def few_digits(monkeypatch):
    monkeypatch.setattr(sources, "synthetic", partial(data.synthetic, train=20, test=5))


@pytest.mark.parametrize(("packed", "below"), [(False, "."), (True, "mnist"), (False, "MNIST/raw")])
def test_mnist_idx_in_the_folder_or_below_its_parent(tmp_path, packed, below):
    folder = write_idx(tmp_path / below, packed=packed)
    loaded = data.load("mnist", data_dir=tmp_path)
    check_mnist(loaded)
    assert Path(loaded.source) == folder
    assert not loaded.synthetic


def test_mnist_npz(tmp_path):
    np.savez(tmp_path / "mnist.npz", x_train=IMAGES[:20], y_train=LABELS[:20], x_test=IMAGES[20:], y_test=LABELS[20:])
    check_mnist(data.load("mnist", data_dir=str(tmp_path)))


def test_cifar10_in_the_folder_or_below_its_parent(tmp_path):
    folder = write_cifar_binary(tmp_path / "cifar-10-batches-bin")
    check_cifar(data.load("cifar10", data_dir=tmp_path))
    check_cifar(data.load("cifar10", data_dir=folder))


def test_cifar100_takes_the_fine_labels(tmp_path):
    fine = np.array([99, 3, 50], np.uint8)
    rows = np.concatenate([[[7]] * 3, fine[:, None], planes(COLOURS[:3])], axis=1).astype(np.uint8)
    folder = tmp_path / "cifar-100-binary"
    folder.mkdir()
    for name in ("train", "test"):
        (folder / f"{name}.bin").write_bytes(rows.tobytes())
    loaded = data.load("cifar100", data_dir=tmp_path)
    np.testing.assert_array_equal(loaded.train.labels, fine)
    np.testing.assert_array_equal(loaded.train.images, COLOURS[:3])
    assert len(set(loaded.class_names)) == 100
    assert loaded.class_names[99] == "worm"


def test_folders_with_the_names_of_files_are_not_files(tmp_path):
    for name in ("train.bin", "test.bin"):
        (tmp_path / name).mkdir()
    with pytest.raises(DataError, match=rf"data_dir: {tmp_path} .* do not hold all"):
        data.load("cifar100", data_dir=tmp_path)


def test_order_of_places(tmp_path, monkeypatch):
    def place(name: str, shade: int) -> Path:
        return write_idx(tmp_path / name, images=np.full_like(IMAGES, shade))

    place("keras/datasets", 3)
    (tmp_path / "empty").mkdir()
    assert data.load("mnist").train.images.max() == 3
    monkeypatch.setenv("MIRRORKIT_DATA", str(place("environment/mnist", 2).parent))
    assert data.load("mnist").train.images.max() == 2
    assert data.load("mnist", data_dir=place("mine", 1)).train.images.max() == 1
    assert data.load("mnist", data_dir=tmp_path / "empty").train.images.max() == 2


def test_a_folder_that_was_named_must_exist(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("MIRRORKIT_DATA", str(write_idx(tmp_path / "environment")))
    missing = tmp_path / "no-such"
    with pytest.raises(DataError, match=rf"{missing}.*no such folder"):
        data.load("mnist", data_dir=missing)
    check_mnist(data.load("mnist", data_dir=missing, fallback="synthetic"))
    assert f"{missing}') was asked for; there is no such folder" in caplog.text


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
    places = ("$MIRRORKIT_DATA: no folder", "Keras cache: no folder", "no network here")
    for words in (f"data_dir: {tmp_path / 'empty'}", *places, "mnist.npz", "data_dir=FOLDER", 'load("synthetic")'):
        assert words in message, words


def test_a_synthetic_set_stands_in_only_when_it_may(caplog):
    stand_in = data.load("cifar10", fallback="synthetic")
    assert stand_in.synthetic
    assert stand_in.train.images.shape[1:] == (32, 32, 3)
    assert "load('cifar10') found no cifar10 here" in caplog.text
    with pytest.raises(DataError, match="found no cifar10 here"):
        data.load("cifar10")
    with pytest.raises(DataError, match="'synthetic', or None"):
        data.load("cifar10", fallback="mnist")
    with pytest.raises(DataError, match="cifar100, synthetic and auto"):
        data.load("imagenet")
    assert data.load("synthetic").synthetic


def test_auto_takes_mnist_from_this_machine(tmp_path, monkeypatch, caplog):
    caplog.set_level("INFO", logger="mirrorkit")
    folder = write_idx(tmp_path / "keras" / "datasets")
    found = data.load("auto")
    check_mnist(found)
    assert (found.name, found.source, found.synthetic) == ("mnist", str(folder), False)
    assert [record.getMessage() for record in caplog.records] == [f"load('auto') takes MNIST from {folder}."]
    mine = write_idx(tmp_path / "mine" / "mnist")
    assert data.load("auto", data_dir=tmp_path / "mine").source == str(mine)
    (mine / "t10k-labels-idx1-ubyte").write_bytes(b"half")
    with pytest.raises(DataError, match="t10k-labels"):  # a user's own files are never skipped
        data.load("auto", data_dir=tmp_path / "mine")


def test_auto_draws_digits_where_there_is_no_mnist_and_never_asks_the_network(tmp_path, monkeypatch, caplog):
    asked = []
    monkeypatch.setattr(keras.datasets.mnist, "load_data", lambda: asked.append("a download"))
    found = data.load("auto")
    assert not asked
    assert (found.name, found.source, found.synthetic) == ("synthetic", "synthetic", True)
    assert found.train.images.shape == (20, 28, 28, 1)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    for words in ("$MIRRORKIT_DATA: not set", f"Keras cache: no folder {tmp_path}", "load('mnist') would download it"):
        assert words in record.getMessage()
    assert data.load("auto", data_dir=tmp_path / "no-such").synthetic
    assert f"load('auto', data_dir='{tmp_path}/no-such') was asked for; there is no such folder" in caplog.text


def test_fashion_mnist_is_not_taken_for_mnist(tmp_path):
    digits = np.array([5, 0, 4, 1, 9, 2, 1, 3, 1, 4] * 3, np.uint8)  # as MNIST's training labels begin
    write_idx(tmp_path, labels=digits)
    assert data.load("mnist", data_dir=tmp_path).train.labels[0] == 5
    with pytest.raises(DataError, match="another set"):
        data.load("fashion_mnist", data_dir=tmp_path)


def test_a_damaged_keras_cache_does_not_stop_the_download(tmp_path, monkeypatch):
    cache = tmp_path / "keras" / "datasets"
    cache.mkdir(parents=True)
    (cache / "mnist.npz").write_bytes(b"half")
    with pytest.raises(DataError, match=r"Keras cache: .*mnist\.npz is damaged"):
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


def test_images_and_labels_of_different_lengths_or_outside_the_classes(tmp_path):
    path = write_idx(tmp_path) / "train-labels-idx1-ubyte"
    path.write_bytes(idx_bytes(LABELS[:19]))
    with pytest.raises(DataError, match=r"20 examples .* 19"):
        data.load("mnist", data_dir=tmp_path)
    path.write_bytes(idx_bytes(LABELS[:20] + 1))
    with pytest.raises(DataError, match="10 classes; 2 do not"):
        data.load("mnist", data_dir=tmp_path)


def test_files_that_cannot_be_read_are_a_file_error(tmp_path, monkeypatch):
    folder = write_idx(tmp_path / "mine")

    def denied(path: Path, rank: int) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(sources.mnist, "read_idx", denied)
    with pytest.raises(FileError, match=f"{folder} cannot be read"):
        data.load("mnist", data_dir=folder)


# --- CIFAR's files: one that is cut short is named


def test_a_cut_binary_file_is_named(tmp_path):
    path = write_cifar_binary(tmp_path / "c") / "data_batch_3.bin"
    for kept, words in ((3073 * 3 - 1, "3073"), (3073 * 2, "3 images"), (0, "found 0")):
        cut(path, to=kept)
        with pytest.raises(DataError, match=rf"data_batch_3\.bin.*{words}"):
            data.load("cifar10", data_dir=tmp_path / "c")


# --- the files of MNIST: what is read; what is damaged is named


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


def test_objects_are_not_unpickled_and_labels_are_integers(tmp_path):
    write_npz(tmp_path, y_train=np.array([{}] * 20, object))
    with pytest.raises(DataError, match=r"mnist\.npz is damaged: .*Object arrays"):
        data.load("mnist", data_dir=tmp_path)
    write_npz(tmp_path, y_train=LABELS[:20].astype("float32"))
    with pytest.raises(DataError, match="float labels"):
        data.load("mnist", data_dir=tmp_path)
