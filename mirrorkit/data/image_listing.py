"""Find the image files of a folder: of one class in each of its folders, or all of them."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from mirrorkit.data.disk import CURE, file_errors
from mirrorkit.errors import DataError, RecipeError

_log = logging.getLogger("mirrorkit")

EXTENSIONS = (".bmp", ".gif", ".jpeg", ".jpg", ".png")  # what TensorFlow decodes
_TOLD = 3  # names in a message


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
    _require_folder(folder)
    folders, files = _listed(folder)
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
    paths: list[str] = []
    counts = []
    for name in names:
        before = len(paths)
        if name in folders:
            paths += _images_in(os.path.join(folder, name), others)
        counts.append(len(paths) - before)
    empty = [name for name, count in zip(names, counts, strict=True) if not count]
    if len(empty) == len(names):
        raise _no_images(folder, others)
    if empty and class_names is None:
        raise DataError(
            f"{folder} holds no image in {_few(empty)} ({', '.join(EXTENSIONS)}). Delete what is no class; if a class "
            "has no image in this set, name all classes: class_names=[...]."
        )
    _tell(folder, others)
    return Listing(paths, np.repeat(np.arange(len(names)), counts), names)


def list_images(folder: str) -> Listing:
    """List all images in a folder and in those within, sorted by name.

    Raises:
        DataError: no such folder, no images.
    """
    _require_folder(folder)
    others: list[str] = []
    paths = [*_images_in(folder, others)]
    if not paths:
        raise _no_images(folder, others)
    _tell(folder, others)
    return Listing(paths)


def _images_in(folder: str, others: list[str]) -> Iterator[str]:
    """Yield the images in a folder and in those within; what else is there is added to `others`."""
    folders, files = _listed(folder, others)
    for name in files:
        if _is_image(name):
            yield os.path.join(folder, name)
        else:
            others.append(os.path.join(folder, name))
    for name in folders:
        yield from _images_in(os.path.join(folder, name), others)


def _listed(folder: str, links: list[str] | None = None) -> tuple[list[str], list[str]]:
    """The names of the folders and of the files in a folder, sorted, without hidden ones.

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
                    if links is not None and entry.is_symlink() and entry.is_dir():
                        links.append(entry.path)
                    else:
                        names[entry.name] = entry.is_dir()
    shown = sorted(name for name in names if not name.startswith("."))
    return [name for name in shown if names[name]], [name for name in shown if not names[name]]


def _is_image(name: str) -> bool:
    return name.lower().endswith(EXTENSIONS)


def _require_folder(folder: str) -> None:
    if not tf.io.gfile.isdir(folder):
        found = "is a file" if tf.io.gfile.exists(folder) else "does not exist"
        raise DataError(f"image_folder needs a folder, or a list of files; {folder} {found}.")


def _no_images(folder: str, others: Sequence[str]) -> DataError:
    found = f"; found {len(others)} other files: {_few(others)}" if others else ""
    return DataError(f"{folder} holds no image ({', '.join(EXTENSIONS)}){found}.")


def _tell(folder: str, others: Sequence[str]) -> None:
    if others:
        _log.warning(
            "%s: %d files that are no images by their names, or links to folders, are left out: %s.",
            folder,
            len(others),
            _few(others),
        )


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:_TOLD]) + (f" and {len(names) - _TOLD} more" if len(names) > _TOLD else "")
