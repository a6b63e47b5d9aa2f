"""Which files of a folder are images, in which order, and what is said of the others."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from mirrorkit._keras import keras
from mirrorkit.data.image_listing import list_classes, list_images
from mirrorkit.data.record_files import matching
from mirrorkit.errors import DataError, FileError, RecipeError

PIXEL = tf.io.encode_png(np.zeros((1, 1, 3), np.uint8)).numpy()


def make(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(PIXEL)


def test_files_come_class_by_class_in_sorted_order_as_in_keras(tmp_path):
    make(tmp_path, "b/2.JPG", "b/10.jpeg", "a/z.png", "a/in/d.bmp", "a/in/c.gif", "c d/\u00e4.png", "B/x.png")
    found = list_classes(str(tmp_path), None)
    assert found.class_names == ("B", "a", "b", "c d")
    names = ["B/x.png", "a/z.png", "a/in/c.gif", "a/in/d.bmp", "b/10.jpeg", "b/2.JPG", "c d/\u00e4.png"]
    assert found.paths == [str(tmp_path / name) for name in names]
    assert found.labels.tolist() == [0, 1, 1, 1, 2, 2, 3]
    keras_found = keras.utils.image_dataset_from_directory(tmp_path, shuffle=False, verbose=False)
    assert (found.paths, found.class_names) == (keras_found.file_paths, tuple(keras_found.class_names))
    assert sorted(list_images(str(tmp_path)).paths) == sorted(found.paths)


def test_other_files_are_counted_and_hidden_ones_left_out(tmp_path, caplog):
    make(tmp_path, "a/1.png", "a/2.webp", "a/notes.txt", "a/in/x.tif", "a/Thumbs.db", "b/1.png")
    make(tmp_path, ".git/1.png", "a/.ipynb_checkpoints/1.png", "a/._1.png", ".DS_Store", "readme.txt")
    make(tmp_path / "elsewhere" / "c", "3.png")
    (tmp_path / "c").symlink_to(tmp_path / "elsewhere" / "c")  # a class
    (tmp_path / "a" / "around").symlink_to(tmp_path)
    with caplog.at_level(logging.WARNING, "mirrorkit"):
        found = list_classes(str(tmp_path), ["a", "b", "c", "elsewhere"])
    assert [Path(path).relative_to(tmp_path).as_posix() for path in found.paths] == [
        *("a/1.png", "b/1.png", "c/3.png", "elsewhere/c/3.png"),
    ]
    (record,) = caplog.records
    assert record.message.startswith(f"{tmp_path}: 5 files that are no images by their names")
    assert record.message.endswith(" and 2 more.")
    assert f"{tmp_path}/a/around" in record.message


def test_folders_of_another_file_system(tmp_path):
    for name in ("b/1.png", "a/2.png", "a/in/1.png", "a/notes.txt"):
        tf.io.gfile.makedirs(f"ram://set/{name.rpartition('/')[0]}")
        with tf.io.gfile.GFile(f"ram://set/{name}", "wb") as opened:
            opened.write(PIXEL)
    found = list_classes("ram://set", None)
    assert found.paths == ["ram://set/a/2.png", "ram://set/a/in/1.png", "ram://set/b/1.png"]
    assert found.class_names == ("a", "b")


def test_a_class_may_be_empty_where_all_are_named(tmp_path):
    make(tmp_path, "a/1.png", "c/1.png")
    (tmp_path / "b").mkdir()
    with pytest.raises(DataError, match=r"no image in b .*class_names="):
        list_classes(str(tmp_path), None)
    found = list_classes(str(tmp_path), ["a", "b", "c", "d"])
    assert found.labels.tolist() == [0, 2]


def test_refusals(tmp_path):
    with pytest.raises(DataError, match=r"no folder .*nowhere"):
        list_classes(str(tmp_path / "nowhere"), None)
    with pytest.raises(DataError, match="0 images"):
        list_classes(str(tmp_path), None)
    make(tmp_path, "1.png", "2.png", "notes.txt")
    with pytest.raises(DataError, match=r"2 images. .*labels=None"):
        list_classes(str(tmp_path), None)
    with pytest.raises(DataError, match=r"no folder .*1\.png"):
        list_images(str(tmp_path / "1.png"))
    make(tmp_path, "a/notes.txt")
    with pytest.raises(DataError, match=r"notes\.txt"):
        list_classes(str(tmp_path), None)
    make(tmp_path, "b/1.png", "c/1.png", "d/1.png", "e/1.png")
    with pytest.raises(RecipeError, match="b, c, d and 1 more"):
        list_classes(str(tmp_path), ["a"])


def test_a_name_that_is_not_utf8_is_named(tmp_path):
    make(tmp_path, "a/1.png", os.fsdecode(b"a/\xe9.png"))
    with pytest.raises(FileError, match="a name is not UTF-8"):
        list_images(str(tmp_path / "a"))
    with pytest.raises(FileError, match=r"\*\.png.*a name is not UTF-8"):
        matching(str(tmp_path / "a" / "*.png"))  # of records and Parquet files
