"""Recipes that read their examples from files, or from an object by number: written once for each process."""

from __future__ import annotations

import atexit
import functools
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import mirrorkit as mk


def records(split: mk.data.Split, **options: Any) -> mk.data.Recipe:
    """The examples as three TFRecord files."""
    folder = _folder("records")
    if not any(folder.iterdir()):
        mk.data.write_records(split, folder, num_files=3)
    return mk.data.records(folder, **options)


def image_folder(images: np.ndarray, labels: np.ndarray, **options: Any) -> mk.data.Recipe:
    """PNG files in class folders, larger than they are read; augmented, so that workers draw for their rows alone."""
    folder = _folder("images")
    if not any(folder.iterdir()):
        for number, (image, label) in enumerate(zip(images, labels, strict=True)):
            file = folder / f"class{label}" / f"{number:03}.png"
            file.parent.mkdir(exist_ok=True)
            file.write_bytes(tf.io.encode_png(np.kron(image, np.ones((2, 3, 1), np.uint8))).numpy())
    augment = [mk.data.augment.flip(), mk.data.augment.pad_and_crop(1)]
    size = images.shape[1:3]
    return mk.data.image_folder(folder, image_size=size, color_mode="grayscale", augment=augment, **options)


def parquet(x: np.ndarray, y: np.ndarray, weight: np.ndarray, **options: Any) -> mk.data.Recipe:
    """Two files of some row groups each, with missing values."""
    import pyarrow
    import pyarrow.parquet

    folder = _folder("tables")
    if not any(folder.iterdir()):
        for number, rows in enumerate(np.array_split(np.arange(len(x)), 2)):
            columns = [pyarrow.array([None if i % 10 == 0 else x[i, place] for i in rows]) for place in range(4)]
            table = pyarrow.table([*columns, y[rows], weight[rows]], names=[*"abcd", "label", "weight"])
            pyarrow.parquet.write_table(table, folder / f"{number}.parquet", row_group_size=9)
    named = {"x": [*"abcd"], "y": "label", "sample_weight": "weight", "fill": 0.0, "shuffle_buffer": 48}
    return mk.data.parquet(folder, **named, map=_stacked, **options)


def source(x: np.ndarray, y: np.ndarray, **options: Any) -> mk.data.Recipe:
    """A list of dicts, as a data set of Hugging Face is one."""
    items = [{"x": row, "y": label} for row, label in zip(x, y, strict=True)]
    return mk.data.source(items, map=lambda item: (item["x"], item["y"]), **options)


def _stacked(x: Any, y: Any, weight: Any) -> Any:
    return tf.stack([x[name] for name in "abcd"], 1), y, weight


@functools.cache
def _folder(name: str) -> Path:
    folder = tempfile.TemporaryDirectory(prefix=f"mirrorkit-{name}-")
    atexit.register(folder.cleanup)
    return Path(folder.name)
