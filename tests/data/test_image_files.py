"""image_folder: which files are images, classes, labels, subsets, corrupt files; batches: test_preparation.py."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from recipe_helpers import assert_same, collect, contexts, joined, write_images

from mirrorkit import data
from mirrorkit._keras import keras
from mirrorkit.data.found_files import matching
from mirrorkit.data.image_listing import list_classes, list_images
from mirrorkit.errors import DataError, FileError, RecipeError

IMAGES = np.random.default_rng(0).integers(0, 256, (31, 6, 5, 3), dtype=np.uint8)
LABELS = np.repeat([0, 1, 2], [9, 15, 7])
NAMES = [f"{'abc'[label]}/{i:02}.png" for i, label in enumerate(LABELS)]
FORM = {"image_size": (6, 5), "global_batch_size": 4}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    write_images(folder, IMAGES, NAMES)
    return folder


@pytest.fixture
def own_folder(folder, tmp_path):
    """A copy that a test may change."""
    return Path(shutil.copytree(folder, tmp_path / "images"))


def damage(folder: Path, *places: int) -> list[str]:
    """Cut these files short, and return their paths."""
    paths = [folder / NAMES[place] for place in places]
    for path in paths:
        path.write_bytes(path.read_bytes()[:50])
    return [str(path) for path in paths]


def test_class_folders_are_the_classes(folder):
    recipe = data.image_folder(folder, **FORM, shuffle=True)
    assert recipe.class_names == ("a", "b", "c")
    assert recipe.file_paths == [str(folder / name) for name in NAMES]
    np.testing.assert_array_equal(recipe.labels, LABELS)
    other = data.image_folder(str(folder), **FORM, class_names=["c", "d", "b", "a"])
    assert (other.num_classes, other.class_names) == (4, ("c", "d", "b", "a"))
    np.testing.assert_array_equal(joined(collect(other.dataset()))[1], np.repeat([0, 2, 3], [7, 15, 9]))


def test_labels_of_a_list_of_files(folder):
    paths = [folder / name for name in NAMES]
    targets = np.random.default_rng(1).normal(size=(31, 2)).astype(np.float32)
    assert data.image_folder(paths, labels=list(LABELS), **FORM).num_classes == 3
    labels = {"a": targets.tolist(), "b": LABELS}
    recipe = data.image_folder(paths, labels=labels, **FORM, shuffle=True, seed=1)
    memory = data.batches(data.arrays(IMAGES, labels), global_batch_size=4, shuffle=True, seed=1)
    assert recipe.num_classes is None
    assert_same(collect(recipe.dataset(1)), collect(memory.dataset(1)))
    named = data.image_folder(paths, labels=LABELS, class_names=list("wxyz"), **FORM, one_hot=True)
    assert next(iter(named.dataset()))[1].shape == (4, 4)


def test_the_subsets_share_no_file_whatever_the_seed(folder):
    options = {**FORM, "validation_split": 0.3}
    train = data.image_folder(folder, **options, subset="training", shuffle=True, seed=1)
    held_out = data.image_folder(folder, **options, subset="validation", seed=2)
    assert (train.num_examples, held_out.num_examples) == (22, 9)
    assert sorted(train.file_paths + held_out.file_paths) == [str(folder / name) for name in NAMES]
    assert held_out.file_paths == sorted(held_out.file_paths)
    assert train.class_names == held_out.class_names == ("a", "b", "c")
    x, y = joined(collect(held_out.dataset()))
    places = [NAMES.index(str(Path(path).relative_to(folder))) for path in held_out.file_paths]
    np.testing.assert_array_equal(x, IMAGES[places])
    np.testing.assert_array_equal(y, LABELS[places])


def test_a_file_that_does_not_suit_the_color_mode_is_not_corrupt(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "0.jpg").write_bytes(tf.io.encode_jpeg(IMAGES[0]).numpy())
    recipe = data.image_folder(tmp_path, **FORM, color_mode="rgba", skip_corrupt=True)
    assert recipe.skipped == ()
    words = f"{tmp_path}/a/0.jpg is whole, but cannot be decoded with this color_mode: "
    with pytest.raises(tf.errors.InvalidArgumentError, match=words):
        list(recipe.dataset())


def test_corrupt_files_are_left_out_where_that_is_asked_for(own_folder, caplog):
    folder = own_folder
    paths = damage(folder, 0, 13, 30)
    with caplog.at_level(logging.WARNING, "mirrorkit"):
        recipe = data.image_folder(folder, **FORM, shuffle=True, skip_corrupt=True)
    (record,) = caplog.records
    assert record.message == f"3 of 31 files cannot be decoded, and are left out: {', '.join(paths)}."
    assert recipe.skipped == tuple(paths)
    whole = [i for i in range(31) if i not in (0, 13, 30)]
    memory = data.batches(data.arrays(IMAGES[whole], LABELS[whole]), global_batch_size=4, shuffle=True)
    assert_same(collect(recipe.dataset(1)), collect(memory.dataset(1)))
    caplog.clear()
    assert data.image_folder([folder / NAMES[1]], labels=[0], **FORM, skip_corrupt=True).skipped == ()
    assert not caplog.records
    with pytest.raises(DataError, match="None of 3 files"):
        data.image_folder(paths, labels=None, **FORM, skip_corrupt=True)


def test_a_worker_opens_the_files_of_its_rows_from_start_on_alone(own_folder):
    """The other files are missing: whoever opened one would fail."""
    folder = own_folder
    recipe = data.image_folder(folder, **FORM, shuffle=True, seed=5)
    whole = collect(recipe.dataset(1, 2))
    _, own = contexts(2)
    needed = {int(place) for step in range(2, 8) for place in recipe.order(1)[4 * step : 4 * step + 4][2:]}
    for place in {*range(31)} - needed:
        (folder / NAMES[place]).unlink()
    read = collect(recipe.dataset(1, 2, input_context=own))
    assert_same(read, [(x[2:], y[2:]) for x, y in whole])


def test_what_workers_compare(folder, tmp_path_factory):
    def identity(path=folder, **options):
        return data.image_folder(path, **{**FORM, **options}).identity(0, 0)

    elsewhere = tmp_path_factory.mktemp("elsewhere")
    write_images(elsewhere, IMAGES, NAMES)
    first = identity()
    assert identity(elsewhere) == first
    assert identity(seed=1) != first
    assert identity(image_size=(5, 5)) != first
    assert identity(class_names=["b", "a", "c"]) != first
    (elsewhere / NAMES[3]).rename(elsewhere / "a/30.png")
    assert identity(elsewhere) != first
    paths = [folder / name for name in NAMES]
    assert identity(paths, labels=LABELS) != identity(paths, labels=LABELS[::-1].copy())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"labels": "folder"}, '"inferred"'),
        ({"labels": LABELS}, "labels .* a folder"),
        ({"class_names": ["a", "b"]}, "also has c"),
        ({"class_names": ["a", "b", "c", "a"]}, "no two classes"),
        ({"class_names": "abc"}, "class_names .* list"),
        ({"class_names": ["a"], "labels": None}, "class_names .* labels"),
        ({"labels": None, "one_hot": True}, "one_hot"),
        ({"validation_split": 0.2}, "belong together"),
        ({"subset": "training"}, "belong together"),
        ({"validation_split": 1.5, "subset": "training"}, r"validation_split.*1\.5"),
        ({"validation_split": 0.2, "subset": "test"}, "found 'test'"),
        ({"validation_split": 0.02, "subset": "validation"}, "31 images leaves none"),
        ({"image_size": 32}, "width.* found 32"),
        ({"image_size": (32, 0)}, "found 0"),
        ({"color_mode": "bgr"}, "rgba; found 'bgr'"),
        ({"interpolation": "cubic"}, "bicubic.*; found 'cubic'"),
        ({"crop_to_aspect_ratio": True, "pad_to_aspect_ratio": True}, "not for both"),
    ],
)
def test_bad_arguments_are_refused(folder, options, words):
    with pytest.raises(RecipeError, match=words):
        data.image_folder(folder, **{**FORM, **options})


def test_bad_lists_are_refused(folder):
    paths = [folder / name for name in NAMES]
    for path, options, words in (
        ([], {"labels": []}, "empty list"),
        (paths, {}, "without labels"),
        (paths, {"labels": LABELS[:30]}, "31 examples.* holds 30"),
        (paths, {"labels": {"a": LABELS, "b": LABELS[:4]}}, r"labels\['b'\] holds 4"),
        (paths, {"labels": [*"abc"] * 10}, "labels must hold numbers; found text"),
        (paths, {"labels": LABELS, "class_names": ["a", "b"]}, r"0 \.\. 1 for 2 classes"),
    ):
        with pytest.raises(DataError, match=words):
            data.image_folder(path, **FORM, **options)


# --- which files of a folder are images, in which order, and what is said of the others


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
