"""Global batches of image files, decoded as they are needed."""

from __future__ import annotations

import functools
import logging
import os
import zlib
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any

import numpy as np
import tensorflow as tf

from mirrorkit.data.disk import path_of, paths_of
from mirrorkit.data.image_decoding import ImageFormat, is_image
from mirrorkit.data.image_listing import Listing, list_classes, list_images
from mirrorkit.data.in_memory import OfSplit
from mirrorkit.data.nests import Arrays
from mirrorkit.data.remote_files import in_parallel, require_readable
from mirrorkit.data.splits import Split, arrays
from mirrorkit.errors import DataError, RecipeError
from mirrorkit.printing import few

_log = logging.getLogger("mirrorkit")

_SUBSETS = ("training", "validation")


@dataclass(frozen=True, eq=False)
class ImageFolder(OfSplit):
    """A recipe like `batches`, for image files; memory holds their paths and a few batches.

    `mk.data.image_folder` is this class. Its arguments are the recipe's attributes; their names are those of Keras's
    `image_dataset_from_directory`, if it has the same option.

    ```python
    train = mk.data.image_folder("flowers/", image_size=(224, 224), global_batch_size=256, shuffle=True)
    test = mk.data.image_folder(paths, labels=labels, image_size=(224, 224), global_batch_size=256)
    ```

    A batch is `(x, y)`: images uint8 [B, H, W, C] and class indices int64 [B], or what `labels` holds; without labels
    it is `(x,)`. JPEG, PNG, BMP and the first image of GIF files of any size are decoded and resized in TensorFlow's
    threads, several batches at the same time. Resized pixels are rounded to the nearest integer, half to even. On
    several workers, each decodes only the rows of its replicas.

    The order is a pure function of (seed, epoch), the same as that of `batches` over these images.

    Args:
        path: a folder with a subfolder for each class, or a list of files, on this machine or at gs://. The sorted
            names of the subfolders are the classes. Images in folders within a class folder belong to it. Hidden files,
            links to folders within a class, and files that are not named .bmp, .gif, .jpeg, .jpg or .png are left out;
            a log line says how many.
        global_batch_size: examples per step over all replicas together, as in `batches`.
        shuffle, seed, augment, map, one_hot, drop_remainder, prefetch: as in `batches`.
        weights, replacement, examples_per_epoch: as in `batches`.
        image_size: height and width in pixels.
        labels: "inferred" takes the class folders. For a list of files, a label for each, as in `mk.data.arrays`. None
            makes batches without labels, of all images in the folder or list.
        class_names: the classes in their order; all folders must be among them. A class may then have no image, as in a
            validation set: `class_names=train.class_names`. With `labels`, the number of names is the number of
            classes.
        color_mode: "rgb", "grayscale" or "rgba".
        interpolation: how to resize: "bilinear", "nearest", "bicubic", "area", "lanczos3", "lanczos5", "gaussian" or
            "mitchellcubic".
        crop_to_aspect_ratio: resize the largest central part with the aspect ratio of `image_size`. By default the
            whole image is stretched.
        pad_to_aspect_ratio: keep the image's aspect ratio, and pad with zeros on both sides.
        validation_split: the fraction of the images, between 0 and 1, for validation. The choice depends only on their
            number, not on `seed` or `shuffle`, so the two subsets never overlap.
        subset: with `validation_split`, "training" or "validation".
        skip_corrupt: decode every file once, at the start, and leave out those that cannot be decoded; a log line says
            how many. The others keep their order.

    Attributes:
        labels: the label of each file, as in batches; None if there are none.
        num_classes: the number of classes; None where labels are not classes.
        skipped: the files that were left out as corrupt.

    Raises:
        RecipeError: what `batches` refuses; arguments that do not fit each other; an option that does not exist.
        ArgumentError: an address, but for gs://.
        DataError: no such folder, no class folders, a class without images, no images; labels outside the classes, or
            not one for each file. A file that cannot be decoded raises an error when it is read: a DataError in a
            `Loop`, TensorFlow's InvalidArgumentError in a custom training loop. Both name the file.
        FileError: a folder that cannot be read.
    """

    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
    _: KW_ONLY
    image_size: tuple[int, int] = (256, 256)
    labels: Arrays = "inferred"
    class_names: Sequence[str] | None = None
    color_mode: str = "rgb"
    interpolation: str = "bilinear"
    crop_to_aspect_ratio: bool = False
    pad_to_aspect_ratio: bool = False
    validation_split: float | None = None
    subset: str | None = None
    skip_corrupt: bool = False
    skipped: tuple[str, ...] = field(init=False, default=())
    _format: ImageFormat = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Find the files and check the arguments."""
        checked = ImageFormat(**{name: getattr(self, name) for name in ImageFormat.__dataclass_fields__})
        self._set(_format=checked, image_size=tuple(map(int, self.image_size)))
        _check_subset(self.validation_split, self.subset)
        if self.class_names is not None and (isinstance(self.class_names, str) or self.labels is None):
            raise RecipeError(f"class_names must be a list of names, for labels; found {self.class_names!r}.")
        names = self.class_names or ()
        if len(set(names)) < len(names):
            raise RecipeError(f"class_names={list(names)} was asked for; no two classes may share a name.")
        listing = self._listed()
        places = np.arange(len(listing.paths))
        num_classes = None if listing.class_names is None else len(listing.class_names)
        split = Split(places) if listing.labels is None else arrays(places, listing.labels, num_classes=num_classes)
        split = replace(split, images=np.array(listing.paths, object))
        if self.subset is not None:
            split = split[_part(len(split), self.validation_split, self.subset)]
        if self.skip_corrupt:
            split = self._readable(split)
        self._set(labels=split.labels, class_names=listing.class_names)
        self._take(split, [None, *self._format.shape])

    @property
    def file_paths(self) -> list[str]:
        """The files, in the order of an epoch that is not shuffled."""
        return list(self._split.inputs)

    @functools.cached_property
    def layout(self) -> object:
        """See `PreparedRecipe`: a number that stands for names and labels, wherever the folder lies."""
        paths, *labels = self._split.as_element()
        if isinstance(self.path, (str, os.PathLike)):
            root = len(os.path.expanduser(os.fspath(self.path)))
            names = [path[root:].strip(os.sep) for path in paths]
        else:
            names = [os.path.basename(path) for path in paths]
        crc = zlib.crc32("".join(f"{name}\0" for name in names).encode())
        for label in tf.nest.flatten(labels):
            crc = zlib.crc32(label.tobytes(), crc)
        return crc

    def identity(self, epoch: int, start: int) -> str:
        """Return what must be the same on all workers; see `PreparedRecipe.identity`."""
        return f"{super().identity(epoch, start)} {self._format} {self.layout}"

    def _element(self, *read: Any) -> tuple[Any, ...]:
        paths, *labels = read
        return (self._format.batch(paths), *labels)

    def _listed(self) -> Listing:
        inferred = isinstance(self.labels, str)
        if inferred and self.labels != "inferred":
            raise RecipeError(f'labels must be "inferred", None or an array, found {self.labels!r}.')
        if isinstance(self.path, (str, os.PathLike)):
            folder = path_of("image_folder", self.path)
            if inferred:
                return list_classes(folder, self.class_names)
            if self.labels is not None:
                raise RecipeError(
                    "labels were given for a folder, whose files may come in a different order. Pass a list of files: "
                    "image_folder(paths, labels=labels, ...)."
                )
            return list_images(folder)
        paths = paths_of("image_folder", self.path)
        for path in paths:
            require_readable("image_folder", path)
        if not paths:
            raise DataError("image_folder was given an empty list of files.")
        if inferred:
            raise RecipeError(
                "image_folder was given a list of files without labels. Pass labels=, one for each, or labels=None for "
                "batches without labels."
            )
        return Listing(paths, self.labels, None if self.class_names is None else tuple(self.class_names))

    def _readable(self, split: Split) -> Split:
        """Leave out the files that cannot be decoded."""
        _log.info("Decoding %d files once, to find those that are corrupt.", len(split))
        whole = np.array(in_parallel(is_image, split.inputs))
        if whole.all():
            return split
        self._set(skipped=tuple(split.inputs[~whole]))
        told = few(self.skipped)
        _log.warning("%d of %d files cannot be decoded, and are left out: %s.", len(self.skipped), len(split), told)
        if not whole.any():
            raise DataError(f"None of {len(split)} files can be decoded as an image, the first is {self.skipped[0]}.")
        return split[whole]


image_folder = ImageFolder


def _check_subset(validation_split: float | None, subset: str | None) -> None:
    if (validation_split is None) != (subset is None):
        raise RecipeError("validation_split and subset belong together: pass both or neither.")
    if validation_split is not None and not 0 < validation_split < 1:
        raise RecipeError(f"validation_split must lie between 0 and 1, found {validation_split!r}.")
    if subset not in (None, *_SUBSETS):
        raise RecipeError(f"subset must be one of {', '.join(_SUBSETS)}; found {subset!r}.")


def _part(count: int, fraction: float | None, subset: str) -> np.ndarray:
    """The places of a subset, in their order."""
    held_out = int((fraction or 0) * count)
    drawn = np.random.default_rng(0).permutation(count)
    chosen = drawn[:held_out] if subset == "validation" else drawn[held_out:]
    if not len(chosen):
        raise RecipeError(f"validation_split={fraction} of {count} images leaves none for {subset}; choose another.")
    return np.sort(chosen)
