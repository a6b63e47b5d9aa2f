"""Find and read the well-known data sets: your own folder, $MIRRORKIT_DATA, the Keras cache, or a download."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from mirrorkit.arguments import checks_arguments
from mirrorkit.data import cifar, mnist
from mirrorkit.data.disk import CURE, file_errors
from mirrorkit.data.drawn_digits import synthetic
from mirrorkit.data.splits import Splits, arrays
from mirrorkit.errors import DataError, FileError, RecipeError

_log = logging.getLogger("mirrorkit")
_DOWNLOAD_SILENCE = 30.0  # seconds without a byte after which a download counts as failed
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


@dataclass(frozen=True)
class _Known:
    shape: tuple[int, int, int]
    class_names: tuple[str, ...]
    page: str
    folders: tuple[str, ...]  # where its files may be, below the folder that was given
    readers: tuple[Callable[[Path], tuple[mnist.Half, mnist.Half]], ...]


def _cifar(class_names: tuple[str, ...], folder: str) -> _Known:
    name, classes = f"cifar{len(class_names)}", len(class_names)
    return _Known(
        (32, 32, 3),
        class_names,
        "https://www.cs.toronto.edu/~kriz/cifar.html",
        ("", folder, name, f"{name}/{folder}"),
        (partial(cifar.read_binary, classes=classes),),
    )


_SETS = {
    "mnist": _Known(
        (28, 28, 1),
        tuple("0123456789"),
        "https://storage.googleapis.com/tensorflow/tf-keras-datasets/mnist.npz",
        ("", "mnist", "MNIST", "MNIST/raw", "mnist/raw"),
        (mnist.read_idx_files, mnist.read_npz),
    ),
    "fashion_mnist": _Known(
        (28, 28, 1),
        _CLOTHES,
        "https://github.com/zalandoresearch/fashion-mnist",
        ("", "fashion-mnist", "fashion_mnist", "FashionMNIST", "FashionMNIST/raw"),
        (mnist.read_idx_files,),
    ),
    "cifar10": _cifar(_CIFAR10, "cifar-10-batches-bin"),
    "cifar100": _cifar(tuple(_CIFAR100.split()), "cifar-100-binary"),
}
# MNIST and Fashion-MNIST have the same file names and sizes; their first ten labels tell which one it is
_FIRST_LABELS = {"5041921314": "mnist", "9003027255": "fashion_mnist"}


class _AbsentError(DataError):
    """A folder does not hold the data set; the next place is tried."""


@checks_arguments(RecipeError)
def load(name: str, *, data_dir: str | os.PathLike[str] | None = None, fallback: str | None = None) -> Splits:
    """Load a data set by name: "mnist", "fashion_mnist", "cifar10", "cifar100", "synthetic" or "auto".

    ```python
    digits = mk.data.load("mnist", data_dir="~/data")
    digits.train.images, digits.train.labels          # uint8 [60000, 28, 28, 1], int64 [60000]
    digits = mk.data.load("auto")                     # MNIST if it is on this machine, else synthetic digits
    digits.name, digits.source                        # which of them: "mnist", "/home/me/data/mnist"
    ```

    These places are tried in order: `data_dir`, $MIRRORKIT_DATA, the Keras cache (datasets in $KERAS_HOME or ~/.keras),
    and last keras.datasets, which reads that cache or fills it by a download. A folder may be the one with the files or
    its parent. The layouts are IDX plain or gzip, mnist.npz, and CIFAR "binary"; CIFAR "python" is pickles, which Keras
    alone reads.
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
    given = None if data_dir is None else Path(data_dir).expanduser()
    if given is not None and not given.is_dir():
        missing = (
            f"load({asked!r}, data_dir={os.fspath(given)!r}) was asked for; there is no such folder. Correct the "
            "path, or leave data_dir out to look in $MIRRORKIT_DATA and the Keras cache."
        )
        if not fallback:
            raise DataError(missing)
        _log.warning(missing)
    cache = Path(os.environ.get("KERAS_HOME") or "~/.keras", "datasets")
    places = {"data_dir": given, "$MIRRORKIT_DATA": os.environ.get("MIRRORKIT_DATA"), "Keras cache": cache}
    tried = []
    for place, root in places.items():
        try:
            with file_errors(f"{root} cannot be read", CURE):
                found = _read(name, root)
        except (DataError, FileError) as error:
            # a user's own files are never skipped without a word; a download repairs the cache
            if root is not cache and not isinstance(error, _AbsentError):
                raise
            tried.append(f"{place}: {error}")
        else:
            if asked == "auto":
                _log.info("load('auto') takes MNIST from %s.", found.source)
            return found
    if asked == "auto":
        tried.append("load('mnist') would download it")
    else:
        try:
            return _download(name)
        except Exception as error:
            tried.append(f"download: {type(error).__name__}: {error}")
    nowhere = f"load({asked!r}) found no {name} here ({'; '.join(tried)})"
    if fallback:
        _log.warning("%s: synthetic digits stand in.", nowhere)
        return synthetic(_SETS[name].shape)
    raise DataError(
        f"{nowhere}. Fetch it from {_SETS[name].page}, put its files into a folder, and pass load({name!r}, "
        'data_dir=FOLDER) or set MIRRORKIT_DATA=FOLDER. load("synthetic") needs no files.'
    )


def _read(name: str, root: str | os.PathLike[str] | None) -> Splits:
    """Read a set from a folder, or from one of the usual folders in it."""
    if not root:
        raise _AbsentError("not set")
    root = Path(root).expanduser()
    if not root.is_dir():
        raise _AbsentError(f"no folder {root}")
    known, others = _SETS[name], []
    for folder in map(root.joinpath, known.folders):
        for read in known.readers:
            try:
                halves = read(folder)
            except (FileNotFoundError, IsADirectoryError):
                continue
            first_labels = "".join(map(str, halves[0][1][:10]))
            if _FIRST_LABELS.get(first_labels, name) == name:
                return _splits(name, halves, str(folder))
            others.append(f"{folder} holds another set with the same file names: {_FIRST_LABELS[first_labels]}")
    raise _AbsentError(
        "; ".join(others) or f"{root} and its folders {', '.join(known.folders[1:])} do not hold all its files"
    )


def _splits(name: str, halves: Sequence[mnist.Half], source: str) -> Splits:
    known, splits = _SETS[name], []
    classes = len(known.class_names)
    for half, (images, labels) in zip(("train", "test"), halves, strict=True):
        try:
            if images.dtype != np.uint8 or images.shape[1:] not in (known.shape, known.shape[:2]):
                raise DataError(f"images should be uint8 {[*known.shape]}; found {images.dtype} {[*images.shape[1:]]}")
            splits.append(arrays(images.reshape(-1, *known.shape), labels, num_classes=classes))
        except DataError as error:
            raise DataError(f"{name} {half} ({source}): {error}") from None
    train, test = splits
    return Splits(name, train, test, classes, known.class_names, source)


def _download(name: str) -> Splits:
    from mirrorkit._keras import keras  # only here: reading from disk needs no Keras

    before = socket.getdefaulttimeout()  # Keras sets none, so a silent server would hang the program
    socket.setdefaulttimeout(_DOWNLOAD_SILENCE)
    try:
        halves = getattr(keras.datasets, name).load_data()
    finally:
        socket.setdefaulttimeout(before)
    if halves[0][0].shape[1] == 3:  # keras.config.image_data_format() == "channels_first"
        halves = [(images.transpose(0, 2, 3, 1), labels) for images, labels in halves]
    return _splits(name, halves, "download")
