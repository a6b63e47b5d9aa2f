"""Find the image files of a folder: of one class in each of its folders, or all of them."""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from mirrorkit.data.disk import CURE, file_errors
from mirrorkit.data.remote_files import require_readable
from mirrorkit.errors import DataError, RecipeError
from mirrorkit.printing import few

_log = logging.getLogger("mirrorkit")

EXTENSIONS = (".bmp", ".gif", ".jpeg", ".jpg", ".png")  # what TensorFlow decodes


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
    with file_errors(f"{folder} cannot be read", CURE):
        _, inside, files = next(_walk(folder))
    folders = sorted(name.rstrip("/") for name in inside if _is_shown(name))
    names = tuple(folders if class_names is None else class_names)
    if not folders:
        images = sum(_is_image(name) for name in filter(_is_shown, files))
        raise DataError(
            f"{folder} should hold a folder of images for each class; found no folder and {images} images. Name the "
            "folder above the classes, or pass labels=None for images without labels."
        )
    if left_out := sorted({*folders} - {*names}):
        raise RecipeError(
            f"class_names={list(names)} was asked for, but {folder} also has {few(left_out)}. Name all of its folders."
        )
    others: list[str] = []
    by_class = [[*_images_in(os.path.join(folder, name), others)] if name in folders else [] for name in names]
    counts = [len(paths) for paths in by_class]
    empty = [name for name, count in zip(names, counts, strict=True) if not count]
    if len(empty) == len(names):
        raise _no_images(folder, others)
    if empty and class_names is None:
        raise DataError(
            f"{folder} holds no image in {few(empty)} ({', '.join(EXTENSIONS)}). Delete folders that are not classes; "
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
    paths = [*_images_in(folder, others)]
    if not paths:
        raise _no_images(folder, others)
    _tell(folder, others)
    return Listing(paths)


def _images_in(folder: str, others: list[str]) -> Iterator[str]:
    """Yield the images in a folder and in those within, sorted; what else is there is added to `others`.

    Hidden files are passed over, and so are links to folders, which may lead around in a circle.
    """
    with file_errors(f"{folder} cannot be read", CURE):
        for parent, folders, files in _walk(folder):
            links = [name for name in folders if os.path.islink(os.path.join(parent, name))]
            folders[:] = sorted(name.rstrip("/") for name in folders if _is_shown(name) and name not in links)
            for name in sorted(filter(_is_shown, [*files, *links])):
                path = os.path.join(parent, name)
                path.encode()  # see `path_of`
                if _is_image(name) and name not in links:
                    yield path
                else:
                    others.append(path)


def _walk(folder: str) -> Iterator[tuple[str, list[str], list[str]]]:
    """Walk in a folder, as `os.walk` does."""
    require_readable("image_folder", folder)
    if not tf.io.gfile.isdir(folder):
        raise DataError(f"image_folder needs a folder, or a list of files; there is no folder {folder}.")
    return tf.io.gfile.walk(folder) if "://" in folder else os.walk(folder, onerror=_raise)


def _raise(error: OSError) -> None:
    raise error


def _is_shown(name: str) -> bool:
    return not name.startswith(".")


def _is_image(name: str) -> bool:
    return name.lower().endswith(EXTENSIONS)


def _no_images(folder: str, others: Sequence[str]) -> DataError:
    found = f"; found {len(others)} other files: {few(others)}" if others else ""
    return DataError(f"{folder} holds no image ({', '.join(EXTENSIONS)}){found}.")


def _tell(folder: str, others: Sequence[str]) -> None:
    if others:
        _log.warning(
            "%s: %d files that are no images by their names, or links to folders, are left out: %s.",
            folder,
            len(others),
            few(others),
        )
