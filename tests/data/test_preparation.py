"""The arguments that batches, resident, records and source share, and what is done to a batch after gathering."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import tensorflow as tf
from recipe_helpers import SPLIT, assert_same, assert_workers_read_the_same, collect, joined, write_images

from mirrorkit import data
from mirrorkit.errors import ArgumentError, DataError, RecipeError

SMALL = SPLIT[:50]


def image_files(place, **options):
    """The recipe of image files, in the order of their labels."""
    paths, labels = place
    return data.image_folder(paths, labels=labels, image_size=(16, 16), **options)


MAKERS = [data.batches, data.resident, data.records, data.source, image_files]


@pytest.fixture
def source(tmp_path):
    """What a maker takes: a split, the folder with its files, its arrays, or its image files and labels."""

    def get(make, split=SMALL):
        if make is data.source:
            return split.as_element()
        if make is image_files:
            return write_images(tmp_path, split.images), split.labels
        return data.write_records(split, tmp_path, num_files=2) if make is data.records else split

    return get


@pytest.mark.parametrize("make", [data.batches, data.records, data.source, image_files])
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"global_batch_size": 0}, "from 1 on, found"),
        ({"global_batch_size": -4}, "from 1 on, found"),
        ({"global_batch_size": 51, "drop_remainder": True}, "the set holds 50 examples: no batch .* at most 50, or"),
        ({"global_batch_size": 4.5}, r"global_batch_size must be a whole number .*, found 4\.5"),
        ({"seed": -1}, "seed must be a whole number from 0 to .*, found -1"),
        ({"seed": None}, r"seed must be a whole number .* found None"),
        ({"seed": 2**63}, f"from 0 to {2**63 - 1}, found {2**63}"),
        ({"augment": [data.augment.flip]}, r"flip itself.*\[flip\(\.\.\.\)\]"),
        ({"augment": data.augment.flip()}, "must be a list"),
        ({"augment": ["flip"]}, "must be a list"),
    ],
)
def test_bad_arguments_are_refused(make, options, words, source):
    with pytest.raises(RecipeError, match=words):
        make(source(make), **{"global_batch_size": 8, **options})


def test_a_bad_argument_is_a_data_error_too():
    assert issubclass(RecipeError, DataError)
    assert issubclass(RecipeError, ArgumentError)


@pytest.mark.parametrize("make", MAKERS)
def test_a_batch_larger_than_the_set_is_one_with_all_examples(make, source):
    place, options = source(make), {"shuffle": True, "augment": [data.augment.flip()], "seed": 2}
    recipe, whole = (make(place, global_batch_size=size, **options) for size in (64, 50))
    assert (recipe.global_batch_size, recipe.steps_per_epoch, list(recipe.batch_sizes())) == (50, 1, [50])
    assert [spec.shape[0] for spec in recipe.element_spec] == [50, 50], "known before it is read"
    (all_of_them,) = assert_workers_read_the_same(recipe, 1, 0, 2, 2)
    assert_same(collect(whole.dataset(1)), [all_of_them])
    np.testing.assert_array_equal(np.sort(all_of_them[1]), np.sort(SMALL.labels))
    assert collect(recipe.dataset(1, 1)) == []


@pytest.mark.parametrize("make", MAKERS)
def test_examples_without_labels(make, source):
    options = {"global_batch_size": 8, "augment": [data.augment.flip()]}
    place, labelled = source(make, data.arrays(SMALL.inputs)), data.batches(SMALL, **options)
    recipe = make(place, **options)
    assert recipe.num_classes is None
    assert_same(collect(recipe.dataset(1)), [(x,) for x, _ in collect(labelled.dataset(1))])
    for function, want in (
        (lambda x: 255 - x, (255 - SMALL.inputs,)),
        (lambda x: (x, 255 - x), (SMALL.inputs, 255 - SMALL.inputs)),
        (lambda x: {"pixels": x}, ({"pixels": SMALL.inputs},)),
    ):
        made = make(place, global_batch_size=8, map=function).dataset()
        assert_same([joined(collect(made))], [want])
    with pytest.raises(RecipeError, match="one_hot=True needs class indices"):
        make(place, global_batch_size=8, one_hot=True)
    with pytest.raises(Exception, match=r"map must return x, \(x, y\) or \(x, y, sample_weight\)"):
        make(place, global_batch_size=8, map=lambda x: (x, x, x, x)).dataset()


@pytest.mark.parametrize("make", MAKERS)
def test_of_several_inputs_the_images_are_augmented(make, source):
    place, options = source(make), {"global_batch_size": 8, "seed": 3, "augment": [data.augment.flip()]}
    alone = collect(make(place, **options).dataset(1))
    assert (joined(alone)[0] != SMALL.inputs).any()
    several = make(place, map=lambda x, y: ({"number": y, "image": x}, y), **options)
    assert_same(collect(several.dataset(1)), [({"number": y, "image": x}, y) for x, y in alone])
    for other, found in ((lambda x, y: ((x, x), y), "a tuple .* 2"), (lambda x, y: ({"a": y}, y), "a dict .* 0")):
        with pytest.raises(Exception, match=f"augment works on one input .*{found} of that rank"):
            make(place, map=other, **options).dataset()


@pytest.mark.parametrize("make", MAKERS)
def test_the_arguments_are_the_attributes_in_their_final_form(make, source):
    flip, place = data.augment.flip(), source(make)
    recipe = make(
        place,
        global_batch_size=np.int32(8),
        shuffle=True,
        seed=np.int64(3),
        augment=[flip],
        one_hot=True,
        drop_remainder=True,
        **({"num_classes": 10} if make is data.source else {}),
    )
    assert (type(recipe.global_batch_size), recipe.global_batch_size) == (int, 8)
    assert (type(recipe.seed), recipe.seed) == (int, 3)
    assert recipe.augment == (flip,)
    assert (recipe.shuffle, recipe.one_hot, recipe.drop_remainder) == (True, True, True)
    assert (recipe.map, recipe.prefetch) == (None, tf.data.AUTOTUNE)
    assert (recipe.num_examples, recipe.num_classes, recipe.steps_per_epoch) == (50, 10, 6)
    assert make(place, global_batch_size=8).augment == ()
    if make is data.resident:
        assert isinstance(recipe, data.Batches)
        assert not recipe.cache


def test_signatures():
    shared = {"global_batch_size", "shuffle", "seed", "augment", "map", "one_hot", "drop_remainder"}
    own = {
        data.batches: {"split", "cache", "prefetch"},
        data.resident: {"split"},
        data.records: {"source", "prefetch", "shuffle_buffer", "num_classes", "decode", "num_examples"},
        data.source: {"items", "prefetch", "num_classes", "threads", "processes"},
        data.image_folder: {
            *("path", "prefetch", "image_size", "labels", "class_names", "color_mode", "interpolation"),
            *("crop_to_aspect_ratio", "pad_to_aspect_ratio", "validation_split", "subset", "skip_corrupt"),
            "max_jpeg_ratio",
        },
        data.parquet: {"files", "prefetch", "x", "y", "sample_weight", "fill", "num_classes", "shuffle_buffer"},
    }
    for make, names in own.items():
        parameters = inspect.signature(make).parameters
        assert set(parameters) == shared | names
        by_position = [name for name, p in parameters.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
        assert by_position == list(parameters)[:1]
        required = [name for name, p in parameters.items() if p.default is p.empty]
        assert required == [by_position[0], "global_batch_size"]


@pytest.mark.parametrize("make", MAKERS)
def test_a_recipe_is_equal_to_itself_alone_and_cannot_be_changed(make, source):
    place = source(make)
    one, other = (make(place, global_batch_size=8) for _ in range(2))
    assert one != other
    assert {one: 1, other: 2}[one] == 1
    with pytest.raises(AttributeError):
        one.global_batch_size = 4


def test_the_work_on_a_batch_is_done_in_its_order():
    def mapped(x, y):
        return tf.cast(x, tf.float32) + 1, (y + 1) % 10

    def halved(images, seed):
        return images / 2

    recipe = data.batches(SMALL, global_batch_size=8, map=mapped, augment=[halved], one_hot=True)
    x, y = recipe.finish((SMALL.inputs[:8], SMALL.labels[:8]), epoch=0, step=tf.constant(0, tf.int64))
    np.testing.assert_array_equal(x, (SMALL.inputs[:8].astype(np.float32) + 1) / 2)
    np.testing.assert_array_equal(y, data.one_hot((SMALL.labels[:8] + 1) % 10, 10))
