"""Find the image files of a folder: of one class in each of its folders, or all of them."""

from __future__ import annotations

import collections
import itertools
import logging
import os
import posixpath
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from mirrorkit.data.disk import CURE, file_errors, is_special
from mirrorkit.data.remote_files import is_remote, within
from mirrorkit.errors import DataError, RecipeError

_log = logging.getLogger("mirrorkit")

EXTENSIONS = (".bmp", ".gif", ".jpeg", ".jpg", ".png")  # what TensorFlow decodes
_TOLD = 3  # names in a message


_Lister = Callable[[str, "list[str] | None"], "tuple[list[str], dict[str, str]]"]


class Listing(NamedTuple):
    """Image files in their order, and of each its class, int64 [N]; None where there are no classes."""

    paths: list[str]
    labels: np.ndarray | None = None
    class_names: tuple[str, ...] | None = None


def list_classes(folder: str, class_names: Sequence[str] | None) -> Listing:
    """List the images of each class folder, class by class, sorted by name.

    Raises:
        DataError: no such folder, no class folders, one without images.
        RecipeError: `class_names` that leave out a folder.
    """
    listed = _lister(folder)
    folders, files = listed(folder, None)
    names = tuple(folders if class_names is None else class_names)
    if not folders:
        images = sum(_is_image(name) for name in files)
        raise DataError(
            f"{folder} should hold a folder of images for each class; found no folder and {images} images. Name the "
            "folder above the classes, or pass labels=None for images without labels."
        )
    if left_out := sorted({*folders} - {*names}):
        raise RecipeError(
            f"class_names={list(names)} was asked for, but {folder} also has {_few(left_out)}. Name all of its folders."
        )
    others: list[str] = []
    by_class = [[*_images_in(os.path.join(folder, name), others, listed)] if name in folders else [] for name in names]
    counts = [len(paths) for paths in by_class]
    empty = [name for name, count in zip(names, counts, strict=True) if not count]
    if len(empty) == len(names):
        raise _no_images(folder, others)
    if empty and class_names is None:
        raise DataError(
            f"{folder} holds no image in {_few(empty)} ({', '.join(EXTENSIONS)}). Delete folders that are not classes; "
            "if a class has no image in this set, name all classes: class_names=[...]."
        )
    _tell(folder, others)
    return Listing([*itertools.chain(*by_class)], np.repeat(np.arange(len(names)), counts), names)


def list_images(folder: str) -> Listing:
    """List all images in a folder and in those within, sorted by name.

    Raises:
        DataError: no such folder, no images.
    """
    others: list[str] = []
    paths = [*_images_in(folder, others, _lister(folder))]
    if not paths:
        raise _no_images(folder, others)
    _tell(folder, others)
    return Listing(paths)


def _images_in(folder: str, others: list[str], listed: _Lister) -> Iterator[str]:
    """Yield the images in a folder and in those within; what else is there is added to `others`."""
    folders, files = listed(folder, others)
    for name, path in files.items():
        if _is_image(name):
            yield path
        else:
            others.append(path)
    for name in folders:
        yield from _images_in(os.path.join(folder, name), others, listed)


def _lister(folder: str) -> _Lister:
    """Return a function that lists a folder or one within."""
    if not is_remote(folder):
        if not tf.io.gfile.isdir(folder):
            raise DataError(f"image_folder needs a folder, or a list of files; there is no folder {folder}.")
        return _listed
    if not (files := within(folder)):
        raise DataError(f"image_folder needs a folder, or a list of files; there is nothing at {folder}.")
    # one listing of all, where each folder would cost a request
    held: dict[str, tuple[set[str], dict[str, str]]] = collections.defaultdict(lambda: (set(), {}))
    for file in files:
        parent, name = posixpath.split(file)
        held[parent][1][name] = file
        while len(parent) > len(folder.rstrip("/")):
            parent, name = posixpath.split(parent)
            held[parent][0].add(name)

    def listed(one: str, links: list[str] | None) -> tuple[list[str], dict[str, str]]:
        folders, files = held[one.rstrip("/")]
        shown = [name for name in sorted(files) if not name.startswith(".")]
        return sorted(name for name in folders if not name.startswith(".")), {name: files[name] for name in shown}

    return listed


def _listed(folder: str, links: list[str] | None) -> tuple[list[str], dict[str, str]]:
    """The names of the folders in a folder, and the files by name with their paths, sorted, without hidden ones.

    A link to a folder is one too, or with `links` is added to them: links may lead around in a circle.
    """
    with file_errors(f"{folder} cannot be read", CURE):
        if "://" in folder:
            _, folders, files = next(tf.io.gfile.walk(folder))
            names = {name.rstrip("/"): True for name in folders} | dict.fromkeys(files, False)
        else:
            with os.scandir(folder) as entries:
                names = {}
                for entry in entries:
                    if links is not None and ((entry.is_symlink() and entry.is_dir()) or is_special(entry.path)):
                        links.append(entry.path)
                    else:
                        names[entry.name] = entry.is_dir()
        "".join(names).encode()  # see `path_of`
    shown = sorted(name for name in names if not name.startswith("."))
    files_shown = {name: os.path.join(folder, name) for name in shown if not names[name]}
    return [name for name in shown if names[name]], files_shown


def _is_image(name: str) -> bool:
    return name.lower().endswith(EXTENSIONS)


def _no_images(folder: str, others: Sequence[str]) -> DataError:
    found = f"; found {len(others)} other files: {_few(others)}" if others else ""
    return DataError(f"{folder} holds no image ({', '.join(EXTENSIONS)}){found}.")


def _tell(folder: str, others: Sequence[str]) -> None:
    if others:
        _log.warning(
            "%s: %d files that are no images by their names, links to folders, or pipes are left out: %s.",
            folder,
            len(others),
            _few(others),
        )


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:_TOLD]) + (f" and {len(names) - _TOLD} more" if len(names) > _TOLD else "")
