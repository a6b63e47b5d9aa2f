"""image_folder: what batches gives of the decoded images; classes, labels, subsets, corrupt files."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from recipe_helpers import assert_same, assert_workers_read_the_same, collect, contexts, joined, write_images

from mirrorkit import data
from mirrorkit.data import undecodable_image
from mirrorkit.errors import DataError, RecipeError

IMAGES = np.random.default_rng(0).integers(0, 256, (31, 6, 5, 3), dtype=np.uint8)
LABELS = np.repeat([0, 1, 2], [9, 15, 7])
NAMES = [f"{'abc'[label]}/{i:02}.png" for i, label in enumerate(LABELS)]
FORM = {"image_size": (6, 5), "global_batch_size": 4}


@pytest.fixture
def folder(tmp_path):
    write_images(tmp_path, IMAGES, NAMES)
    return tmp_path


def damage(folder: Path, *places: int) -> list[str]:
    """Cut these files short, and return their paths."""
    paths = [folder / NAMES[place] for place in places]
    for path in paths:
        path.write_bytes(path.read_bytes()[:50])
    return [str(path) for path in paths]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"shuffle": True, "seed": 3},
        {"shuffle": True, "augment": [data.augment.flip(), data.augment.pad_and_crop(1)], "one_hot": True},
        {"shuffle": True, "drop_remainder": True, "map": lambda x, y: (255 - x, y)},
    ],
    ids=["as they lie", "shuffled", "augmented", "mapped"],
)
def test_it_gives_what_batches_gives_of_the_decoded_images(folder, options):
    files = data.image_folder(folder, **FORM, **options)
    memory = data.batches(data.arrays(IMAGES, LABELS), global_batch_size=4, **options)
    assert (files.num_examples, files.steps_per_epoch, files.num_classes) == (31, memory.steps_per_epoch, 3)
    assert files.element_spec == memory.element_spec
    np.testing.assert_array_equal(files.order(2), memory.order(2))
    whole = collect(memory.dataset(2))
    for start in range(files.steps_per_epoch + 1) if options == {} else (0, 5):
        assert_same(collect(files.dataset(2, start)), whole[start:])
    assert_same(collect(files.epochs(2)), collect(memory.epochs(2)))
    for workers, each in ((1, 2), (2, 1), (3, 1)) if "augment" in options or options == {} else ((3, 1),):
        whole = assert_workers_read_the_same(files, 1, 3, workers, each)
    assert_same(whole, collect(memory.dataset(1, 3)))


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
    rows = targets.tolist()  # a list of lists, as of one-hot rows
    for labels, number in ((list(LABELS), 3), (targets, None), (rows, None), ({"a": targets, "b": LABELS}, None)):
        recipe = data.image_folder(paths, labels=labels, **FORM, shuffle=True, seed=1)
        memory = data.batches(data.arrays(IMAGES, labels), global_batch_size=4, shuffle=True, seed=1)
        assert recipe.num_classes == number
        assert_same(collect(recipe.dataset(1)), collect(memory.dataset(1)))
    named = data.image_folder(paths, labels=LABELS, class_names=list("wxyz"), **FORM, one_hot=True)
    assert next(iter(named.dataset()))[1].shape == (4, 4)


def test_images_without_labels(folder):
    for path in (folder, [folder / name for name in NAMES]):
        recipe = data.image_folder(path, labels=None, **FORM)
        assert (recipe.labels, recipe.num_classes, recipe.class_names) == (None, None, None)
        assert_same([joined(collect(recipe.dataset()))], [(IMAGES,)])


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
    with pytest.raises(tf.errors.InvalidArgumentError) as raised:
        list(recipe.dataset())
    told = undecodable_image(str(raised.value))
    assert told.startswith(f"{tmp_path}/a/0.jpg is whole, but cannot be decoded with this color_mode: ")


@pytest.mark.parametrize("place", [0, 13, 30])
def test_a_corrupt_file_is_named(folder, place):
    (path,) = damage(folder, place)
    recipe = data.image_folder(folder, **FORM)
    read = iter(recipe.dataset())
    for number in range(place // 4):
        np.testing.assert_array_equal(next(read)[0], IMAGES[4 * number : 4 * number + 4])
    with pytest.raises(tf.errors.InvalidArgumentError, match=path):
        next(read)


def test_a_corrupt_file_of_another_worker_does_no_harm(folder):
    (path,) = damage(folder, 0)
    own, other = (iter(data.image_folder(folder, **FORM).dataset(input_context=context)) for context in contexts(2))
    np.testing.assert_array_equal(next(other)[0], IMAGES[2:4])
    with pytest.raises(tf.errors.InvalidArgumentError, match=path):
        next(own)


def test_corrupt_files_are_left_out_where_that_is_asked_for(folder, caplog):
    paths = damage(folder, 0, 13, 30)
    with caplog.at_level(logging.WARNING, "mirrorkit"):
        recipe = data.image_folder(folder, **FORM, shuffle=True, skip_corrupt=True)
    (record,) = caplog.records
    assert record.message == f"3 of 31 files cannot be decoded, and are left out: {', '.join(paths)}."
    assert recipe.skipped == tuple(paths)
    whole = [i for i in range(31) if i not in (0, 13, 30)]
    memory = data.batches(data.arrays(IMAGES[whole], LABELS[whole]), global_batch_size=4, shuffle=True)
    assert_same(collect(recipe.dataset(1)), collect(memory.dataset(1)))
    assert_workers_read_the_same(recipe, 1, 2, 3, 1)
    caplog.clear()
    assert data.image_folder([folder / NAMES[1]], labels=[0], **FORM, skip_corrupt=True).skipped == ()
    assert not caplog.records
    with pytest.raises(DataError, match="None of 3 files can be decoded"):
        data.image_folder(paths, labels=None, **FORM, skip_corrupt=True)


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_worker_opens_the_files_of_its_rows_from_start_on_alone(folder, shuffle):
    """The other files are missing: whoever opened one would fail."""
    recipe = data.image_folder(folder, **FORM, shuffle=shuffle, seed=5)
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
    assert identity(max_jpeg_ratio=2) != first
    assert identity(class_names=["b", "a", "c"]) != first
    (elsewhere / NAMES[3]).rename(elsewhere / "a/30.png")
    assert identity(elsewhere) != first
    paths = [folder / name for name in NAMES]
    assert identity(paths, labels=LABELS) != identity(paths, labels=LABELS[::-1].copy())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"labels": "folder"}, '"inferred", None or an array, found'),
        ({"labels": LABELS}, "labels were given for a folder"),
        ({"class_names": ["a", "b"]}, r"class_names=\['a', 'b'\] .* also has c"),
        ({"class_names": "abc"}, "must be a list of names"),
        ({"class_names": ["a"], "labels": None}, "class_names must be a list of names, for labels"),
        ({"labels": None, "one_hot": True}, "one_hot=True needs class indices"),
        ({"validation_split": 0.2}, "belong together"),
        ({"subset": "training"}, "belong together"),
        ({"validation_split": 1.5, "subset": "training"}, "between 0 and 1, found 1.5"),
        ({"validation_split": 0.2, "subset": "test"}, "one of training, validation; found 'test'"),
        ({"validation_split": 0.02, "subset": "validation"}, "of 31 images leaves none for validation"),
        ({"image_size": 32}, r"\(height, width\) in pixels, found 32"),
        ({"image_size": (32, 0)}, "from 1 on, found 0"),
        ({"color_mode": "bgr"}, "one of grayscale, rgb, rgba; found 'bgr'"),
        ({"interpolation": "cubic"}, "one of .*bicubic.*; found 'cubic'"),
        ({"crop_to_aspect_ratio": True, "pad_to_aspect_ratio": True}, "not for both"),
        ({"max_jpeg_ratio": 3}, "max_jpeg_ratio must be one of 1, 2, 4, 8; found 3"),
        ({"max_jpeg_ratio": 2, "color_mode": "rgba"}, 'max_jpeg_ratio=2 and color_mode="rgba" exclude each other'),
    ],
)
def test_bad_arguments_are_refused(folder, options, words):
    with pytest.raises(RecipeError, match=words):
        data.image_folder(folder, **{**FORM, **options})


def test_bad_lists_are_refused(folder):
    paths = [folder / name for name in NAMES]
    for path, options, words in (
        ([], {"labels": []}, "empty list of files"),
        (paths, {}, "list of files without labels"),
        (paths, {"labels": LABELS[:30]}, "given 31 files, but labels holds 30"),
        (paths, {"labels": {"a": LABELS, "b": LABELS[:4]}}, r"labels\['b'\] holds 4"),
        (paths, {"labels": [*"abc"] * 10}, "labels must hold numbers; found text, the first is a. Number"),
        (paths, {"labels": LABELS, "class_names": ["a", "b"]}, r"must lie in 0 \.\. 1 for 2 classes"),
    ):
        with pytest.raises(DataError, match=words):
            data.image_folder(path, **FORM, **options)
