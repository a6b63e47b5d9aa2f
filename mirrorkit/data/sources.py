"""Find and read the well-known data sets: your own folder, $MIRRORKIT_DATA, the Keras cache, or a download."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from mirrorkit.data import cifar, mnist
from mirrorkit.data.disk import CURE, file_errors
from mirrorkit.data.drawn_digits import synthetic
from mirrorkit.data.splits import Split, Splits
from mirrorkit.errors import DataError, FileError, RecipeError

_log = logging.getLogger("mirrorkit")
_DOWNLOAD_SILENCE = 30.0  # seconds without a byte after which a download counts as failed
_DIGITS = tuple("0123456789")
_CLOTHES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
_CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_CIFAR100 = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can
castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin
elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard
lobster man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear
pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark
shrew skunk skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone
television tiger tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm
"""

Parts = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]  # train images and labels, test images and labels


class _Absent(Exception):
    """A folder does not hold the data set (not an error: the next place is tried)."""


def load(name: str, *, data_dir: str | os.PathLike[str] | None = None, fallback: str | None = None) -> Splits:
    """Load a data set by name: "mnist", "fashion_mnist", "cifar10", "cifar100", "synthetic" or "auto".

    ```python
    digits = mk.data.load("mnist", data_dir="~/data")
    digits.train.images, digits.train.labels          # uint8 [60000, 28, 28, 1], int64 [60000]
    digits = mk.data.load("auto")                     # MNIST if it is on this machine, else synthetic digits
    digits.name, digits.source                        # which of them: "mnist", "/home/me/data/mnist"
    ```

    These places are tried in order: `data_dir`, $MIRRORKIT_DATA, the Keras cache (datasets in $KERAS_HOME or ~/.keras),
    and last a download through keras.datasets, which fills that cache. A folder may be the one with the files or its
    parent. The layouts are those that the authors publish: IDX plain or gzip, mnist.npz, CIFAR "binary" and "python".
    "synthetic" needs no files; see `mk.data.synthetic` for its options. "auto" is "mnist" with synthetic digits as its
    fallback. It never downloads, so a script with it runs anywhere. `.name` and the log say which it is.

    Args:
        name: see above.
        data_dir: your own folder, tried first; one that does not exist is an error, or with a `fallback` a warning.
        fallback: "synthetic" draws a synthetic set of the same image size where the real one is not found, and logs a
            warning that lists each place tried; by default that is an error.

    Returns:
        The training and test splits, images uint8 [N, H, W, C] and labels int64 [N]; `.source` says where they came
        from.

    Raises:
        RecipeError: an unknown name or fallback.
        DataError: no folder `data_dir`; the set is not found (the message lists each place tried); a file in
            `data_dir` or $MIRRORKIT_DATA is cut short or damaged (the message names it).
        FileError: `data_dir` or $MIRRORKIT_DATA cannot be read.
    """
    if fallback not in (None, "synthetic"):
        raise RecipeError(f"load(fallback={fallback!r}) was asked for; choose 'synthetic', or None for an error.")
    if name == "synthetic":
        return synthetic()
    if name not in _SETS and name != "auto":
        raise RecipeError(f"load({name!r}) was asked for; choose from {', '.join(_SETS)}, synthetic and auto.")
    asked = name
    if asked == "auto":
        name, fallback = "mnist", "synthetic"
    known = _SETS[name]
    if data_dir is not None and not Path(data_dir).expanduser().is_dir():
        missing = (
            f"load({asked!r}, data_dir={os.fspath(data_dir)!r}) was asked for; there is no such folder. Correct the "
            "path, or leave data_dir out to look in $MIRRORKIT_DATA and the Keras cache."
        )
        if not fallback:
            raise DataError(missing)
        _log.warning(missing)
    tried = []
    for label, root in _places(data_dir):
        try:
            if root is None:
                raise _Absent("not set")
            with file_errors(f"{root} cannot be read", CURE):
                folder, parts = _read_folder(known, root)
        except _Absent as error:
            tried.append(f"{label}: {error}")
        except (DataError, FileError) as error:
            if label != _CACHE:  # a user's own files are never skipped silently; a download repairs the cache
                raise
            tried.append(f"{label}: {error}")
        else:
            if asked == "auto":
                _log.info("load('auto') takes MNIST from %s.", folder)
            return _splits(name, known, parts, str(folder))
    if asked == "auto":
        places = "; ".join(tried)
        _log.warning(
            f"load('auto') found no MNIST here ({places}): synthetic digits stand in. load('mnist') downloads it."
        )
        return synthetic(known.shape)
    try:
        return _splits(name, known, _download(name), "download")
    except Exception as error:
        tried.append(f"download: {type(error).__name__}: {error}")
    places = "\n".join(f"  - {place}" for place in tried)
    nowhere = f"{name} was asked for and found nowhere. Tried:\n{places}"
    if fallback:
        _log.warning("%s\nA synthetic set stands in for it.", nowhere)
        return synthetic(known.shape)
    raise DataError(
        f"{nowhere}\n"
        f"Fetch it from {known.page}, put its files into a folder, and pass load({name!r}, data_dir=FOLDER) or set "
        'MIRRORKIT_DATA=FOLDER. load("synthetic") needs no files.'
    )


def _read_idx(folder: Path) -> Parts:
    paths = []
    for part in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        dotted = part.replace("-idx", ".idx")  # as some unpackers name them
        paths.append(_one_of(folder, [f"{stem}-ubyte{end}" for stem in (part, dotted) for end in ("", ".gz")]))
    images, labels, test_images, test_labels = (mnist.read_idx(path) for path in paths)
    for path, array, rank in zip(paths, (images, labels, test_images, test_labels), (3, 1, 3, 1), strict=True):
        if array.ndim != rank:
            raise DataError(f"{path} should hold an array of {rank} dimensions, found {list(array.shape)}.")
    return images, labels, test_images, test_labels


def _read_npz(folder: Path) -> Parts:
    path = _one_of(folder, ["mnist.npz"])
    images, labels, test_images, test_labels = mnist.read_npz(path, ("x_train", "y_train", "x_test", "y_test"))
    return images, labels, test_images, test_labels


_Reader = Callable[[Path], tuple[np.ndarray, np.ndarray]]


def _read_cifar10(folder: Path, *, end: str, read: _Reader) -> Parts:
    names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    paths = [_one_of(folder, [name + end]) for name in names]
    pieces = [read(path) for path in paths]
    count = max(len(labels) for _, labels in pieces)
    for path, (_, labels) in zip(paths, pieces, strict=True):
        if len(labels) != count:  # cut short exactly between two records
            raise DataError(
                f"{path} is cut short: {count} images were expected, as in its neighbours; found {len(labels)}."
            )
    train, (test_images, test_labels) = pieces[:-1], pieces[-1]
    return np.concatenate([i for i, _ in train]), np.concatenate([k for _, k in train]), test_images, test_labels


def _read_cifar100(folder: Path, *, end: str, read: _Reader) -> Parts:
    train, test = _one_of(folder, ["train" + end]), _one_of(folder, ["test" + end])
    return (*read(train), *read(test))


def _cifar_folders(name: str, binary: str, python: str) -> tuple[str, ...]:
    return (binary, python, f"{python}-target/{python}", name, f"{name}/{binary}", f"{name}/{python}")


@dataclass(frozen=True)
class _Known:
    shape: tuple[int, int, int]
    class_names: tuple[str, ...]
    page: str
    folders: tuple[str, ...]  # names of its folder, below the one that was given
    readers: tuple[Callable[[Path], Parts], ...]
    first_labels: tuple[int, ...] = ()  # the first labels of the official training set


_SETS = {
    "mnist": _Known(
        (28, 28, 1),
        _DIGITS,
        "https://storage.googleapis.com/tensorflow/tf-keras-datasets/mnist.npz",
        ("mnist", "MNIST", "MNIST/raw", "mnist/raw"),
        (_read_idx, _read_npz),
        (5, 0, 4, 1, 9, 2, 1, 3, 1, 4),
    ),
    "fashion_mnist": _Known(
        (28, 28, 1),
        _CLOTHES,
        "https://github.com/zalandoresearch/fashion-mnist",
        ("fashion-mnist", "fashion_mnist", "FashionMNIST", "FashionMNIST/raw"),
        (_read_idx,),
        (9, 0, 0, 3, 0, 2, 7, 2, 5, 5),
    ),
    "cifar10": _Known(
        (32, 32, 3),
        _CIFAR10,
        "https://www.cs.toronto.edu/~kriz/cifar.html",
        _cifar_folders("cifar10", "cifar-10-batches-bin", "cifar-10-batches-py"),
        (
            partial(_read_cifar10, end=".bin", read=cifar.read_binary),
            partial(_read_cifar10, end="", read=cifar.read_python),
        ),
    ),
    "cifar100": _Known(
        (32, 32, 3),
        tuple(_CIFAR100.split()),
        "https://www.cs.toronto.edu/~kriz/cifar.html",
        _cifar_folders("cifar100", "cifar-100-binary", "cifar-100-python"),
        (
            partial(_read_cifar100, end=".bin", read=partial(cifar.read_binary, label_bytes=2)),
            partial(_read_cifar100, end="", read=partial(cifar.read_python, label_key=b"fine_labels")),
        ),
    ),
}
_CACHE = "Keras cache"


def _places(data_dir: str | os.PathLike[str] | None) -> Iterator[tuple[str, Path | None]]:
    if data_dir is not None:
        yield "data_dir", Path(data_dir).expanduser()
    environment = os.environ.get("MIRRORKIT_DATA")
    yield "$MIRRORKIT_DATA", Path(environment).expanduser() if environment else None
    yield _CACHE, Path(os.environ.get("KERAS_HOME") or "~/.keras").expanduser() / "datasets"


def _one_of(folder: Path, names: list[str]) -> Path:
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise _Absent(names[0])


def _read_folder(known: _Known, root: Path) -> tuple[Path, Parts]:
    if not root.is_dir():
        raise _Absent(f"no folder {root}")
    others = [(other, other.first_labels) for other in _SETS.values() if other is not known and other.first_labels]
    strangers = []
    for folder in (root, *(root / name for name in known.folders)):
        for reader in known.readers if folder.is_dir() else ():
            try:
                parts = reader(folder)
            except _Absent:
                continue
            # MNIST and Fashion-MNIST have the same file names and sizes; the wrong one would train without an error
            begins = tuple(int(label) for label in parts[1].ravel()[:10])
            if any(begins == labels for _, labels in others):
                strangers.append(f"{folder} holds another set with the same file names")
                continue
            return folder, parts
    raise _Absent(
        "; ".join(strangers) or f"{root} and its folders {', '.join(known.folders)} do not hold all its files"
    )


def _splits(name: str, known: _Known, parts: Parts, source: str) -> Splits:
    train = _split(f"{name} train ({source})", known, *parts[:2])
    test = _split(f"{name} test ({source})", known, *parts[2:])
    return Splits(name, train, test, len(known.class_names), known.class_names, source)


def _split(where: str, known: _Known, images: np.ndarray, labels: np.ndarray) -> Split:
    if images.dtype != np.uint8 or images.shape[1:] not in (known.shape, known.shape[:2]):
        raise DataError(
            f"{where}: images should be uint8 [N, {', '.join(map(str, known.shape))}]; found {images.dtype} "
            f"{list(images.shape)}."
        )
    labels = labels.reshape(-1).astype(np.int64)
    classes = len(known.class_names)
    if len(images) != len(labels) or len(labels) == 0:
        raise DataError(f"{where}: {len(images)} images and {len(labels)} labels; each image needs one label.")
    if labels.min() < 0 or labels.max() >= classes:
        raise DataError(
            f"{where}: labels should lie in 0 .. {classes - 1}; found {labels.min()} .. {labels.max()}. Fetch it again."
        )
    return Split(images.reshape(-1, *known.shape), labels, classes)


def _download(name: str) -> Parts:
    from mirrorkit._keras import keras  # only here: reading from disk needs no Keras

    with _socket_timeout(_DOWNLOAD_SILENCE):
        (images, labels), (test_images, test_labels) = getattr(keras.datasets, name).load_data()
    if images.ndim == 4 and images.shape[1] == 3:  # keras.config.image_data_format() == "channels_first"
        images, test_images = images.transpose(0, 2, 3, 1), test_images.transpose(0, 2, 3, 1)
    return images, labels, test_images, test_labels


@contextmanager
def _socket_timeout(seconds: float) -> Iterator[None]:
    before = socket.getdefaulttimeout()  # Keras sets none, so a silent server would hang the program
    socket.setdefaulttimeout(seconds)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)
