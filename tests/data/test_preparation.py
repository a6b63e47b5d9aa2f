"""The arguments that batches, resident, records and source share, and what is done to a batch after gathering."""

from __future__ import annotations

import functools
import re
import runpy
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from recipe_helpers import SPLIT, assert_same, assert_workers_read_the_same, collect, joined, write_images

from mirrorkit import data, fit
from mirrorkit._keras import keras
from mirrorkit.errors import ArgumentError, DataError, RecipeError

SMALL = SPLIT[:50]


def image_files(place, **options):
    """The recipe of image files, in the order of their labels."""
    paths, labels = place
    return data.image_folder(paths, labels=labels, image_size=(16, 16), **options)


MAKERS = [data.batches, data.resident, data.records, data.source, image_files]
# what one more kind would tell is slow
SOME = [pytest.param(make, marks=[pytest.mark.slow] * (make in (data.resident, image_files))) for make in MAKERS]
CLASSES = {data.source: {"num_classes": 10}}  # which cannot be looked up there


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


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"global_batch_size": 0}, "found 0"),
        ({"global_batch_size": 4.5}, r"global_batch_size .* found 4\.5"),
        ({"seed": -1}, "seed .* found -1"),
        ({"seed": None}, "seed .* found None"),
        ({"seed": 2**63}, f"found {2**63}"),
        ({"augment": data.augment.flip()}, "must be a list"),
        ({"augment": ["flip"]}, "must be a list"),
    ],
)
def test_bad_arguments_are_refused(options, words):
    with pytest.raises(RecipeError, match=words):
        data.batches(SMALL, **{"global_batch_size": 8, **options})
    assert issubclass(RecipeError, DataError)
    assert issubclass(RecipeError, ArgumentError)


@pytest.mark.parametrize("make", MAKERS)
def test_every_recipe_looks_at_its_arguments_and_the_position(make, source):
    place = source(make)
    with pytest.raises(RecipeError, match="50 examples: no batch"):
        make(place, global_batch_size=51, drop_remainder=True)
    recipe = make(place, global_batch_size=25)
    for position in ((-1, 0), (0, -1), (0, 3)):
        with pytest.raises(RecipeError, match=r"start in 0 \.\. 2"):
            recipe.dataset(*position)


def noisy(images, seed):
    """An augmentation of the user's own, which gets 16 images at a time."""
    return images + tf.cast(tf.random.stateless_uniform([16, 1, 1, 1], seed, 0, 9, tf.int32), tf.uint8)


def options_of(shuffle):
    augment = [data.augment.flip(), noisy]
    return {"global_batch_size": 12, "shuffle": shuffle, "seed": 3, "augment": augment, "one_hot": True}


@functools.cache
def of_batches(shuffle):
    """What `batches` gives in an epoch from its second batch on, and what it says of it."""
    recipe = data.batches(SMALL, **options_of(shuffle))
    return collect(recipe.dataset(2))[1:], recipe.element_spec


@pytest.mark.parametrize("make", SOME)
def test_it_gives_what_batches_gives_and_workers_read_it_together(make, source):
    """Of the last batch, of 2 examples, some of the four replicas would get none."""
    shuffle = make is not data.records  # which shuffle in an order of their own: test_record_reading.py
    recipe = make(source(make), **options_of(shuffle), **CLASSES.get(make, {}))
    expected, spec = of_batches(shuffle)
    assert (recipe.num_examples, recipe.steps_per_epoch, recipe.element_spec) == (50, 5, spec)
    assert_same(assert_workers_read_the_same(recipe, 2, 1, 2, 2), expected)


def test_the_format_that_contributing_shows_is_a_recipe_as_the_others(tmp_path):
    page = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (tmp_path / "npy_files.py").write_text(code)
    npy = runpy.run_path(str(tmp_path / "npy_files.py"), run_name="npy_files")["npy"]
    for number, rows in enumerate(np.array_split(SMALL.images, 3)):
        np.save(tmp_path / f"{number}.npy", rows)
    options = {"global_batch_size": 12, "seed": 3, "augment": [noisy], "map": lambda x: (x, x)}
    expected = collect(data.batches(data.arrays(SMALL.images), **options).dataset(2))
    assert_same(assert_workers_read_the_same(npy(tmp_path, **options), 2, 1, 2, 2), expected[1:])
    shuffled = npy(tmp_path, shuffle=True, **options)
    _, originals = joined(assert_workers_read_the_same(shuffled, 2, 0, 3, 1))
    np.testing.assert_array_equal(originals, SMALL.images[shuffled.order(2)])
    assert sorted(shuffled.order(2)) == list(range(50))


@pytest.mark.parametrize("make", SOME)
def test_a_batch_larger_than_the_set_is_one_with_all_examples(make, source):
    place, options = source(make), {"shuffle": True, "seed": 2}
    recipe, whole = (make(place, global_batch_size=size, **options) for size in (64, 50))
    assert (recipe.global_batch_size, recipe.steps_per_epoch, list(recipe.batch_sizes())) == (50, 1, [50])
    assert [spec.shape[0] for spec in recipe.element_spec] == [50, 50], "known before it is read"
    (all_of_them,) = collect(recipe.dataset(1))
    assert_same(collect(whole.dataset(1)), [all_of_them])
    np.testing.assert_array_equal(np.sort(all_of_them[1]), np.sort(SMALL.labels))
    assert collect(recipe.dataset(1, 1)) == []


@pytest.mark.parametrize("make", SOME)
def test_examples_without_labels(make, source):
    options = {"global_batch_size": 8, "augment": [data.augment.flip()]}
    place, labelled = source(make, data.arrays(SMALL.inputs)), data.batches(SMALL, **options)
    recipe = make(place, **options)
    assert recipe.num_classes is None
    assert_same(collect(recipe.dataset(1)), [(x,) for x, _ in collect(labelled.dataset(1))])
    with pytest.raises(RecipeError, match="one_hot"):
        make(place, global_batch_size=8, one_hot=True)


@pytest.mark.parametrize(
    ("function", "want"),
    [
        (lambda x: 255 - x, (255 - SMALL.inputs,)),
        (lambda x: (x, 255 - x), (SMALL.inputs, 255 - SMALL.inputs)),
        (lambda x: {"pixels": x}, ({"pixels": SMALL.inputs},)),
    ],
)
def test_what_a_map_of_inputs_makes(function, want):
    split = data.arrays(SMALL.inputs)
    assert_same([joined(collect(data.batches(split, global_batch_size=8, map=function).dataset()))], [want])
    with pytest.raises(RecipeError, match="sample_weight"):
        data.batches(split, global_batch_size=8, map=lambda x: (x, x, x, x)).dataset()


@pytest.mark.parametrize("make", SOME)
def test_of_several_inputs_the_images_are_augmented(make, source):
    place, options = source(make), {"global_batch_size": 8, "seed": 3, "augment": [data.augment.flip()]}
    alone = collect(make(place, **options).dataset(1))
    assert (joined(alone)[0] != SMALL.inputs).any()
    several = make(place, map=lambda x, y: ({"number": y, "image": x}, y), **options)
    assert_same(collect(several.dataset(1)), [({"number": y, "image": x}, y) for x, y in alone])


def test_several_images_or_none_cannot_be_augmented():
    options = {"global_batch_size": 8, "augment": [data.augment.flip()]}
    for other, found in ((lambda x, y: ((x, x), y), "a tuple .* 2"), (lambda x, y: ({"a": y}, y), "a dict .* 0")):
        with pytest.raises(RecipeError, match=rf"augment .*{found}"):
            data.batches(SMALL, map=other, **options).dataset()


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
        **CLASSES.get(make, {}),
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


def test_a_recipe_is_equal_to_itself_alone_and_cannot_be_changed():
    one, other = (data.batches(SMALL, global_batch_size=8) for _ in range(2))
    assert one != other
    assert {one: 1, other: 2}[one] == 1
    with pytest.raises(AttributeError):
        one.global_batch_size = 4


@pytest.mark.parametrize("label", [-1, 10])
def test_a_label_that_map_puts_outside_the_classes_gives_no_row_of_zeros(label):
    def moved(x, y):
        return x, tf.where(y == 3, tf.constant(label, y.dtype), y)

    options = {"global_batch_size": 50, "map": moved, "one_hot": True}
    with pytest.raises(tf.errors.InvalidArgumentError, match=rf"labels .* below 10;.*{label}"):
        collect(data.batches(SMALL, **options).dataset())
    ((_, y),) = collect(data.resident(SMALL, **options).dataset())
    np.testing.assert_array_equal(y, np.where(SMALL.labels[:, None] == 3, np.nan, data.one_hot(SMALL.labels, 10)))


def test_a_fit_says_which_labels_it_cannot_make_one_hot(strategy_of):
    with strategy_of("mirrored", 2).scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3)])
        model.compile("sgd", keras.losses.CategoricalCrossentropy(from_logits=True))
    split = data.arrays(np.zeros((8, 2), np.float32), np.arange(8) % 3)
    recipe = data.batches(split, global_batch_size=8, map=lambda x, y: (x, y + 3), one_hot=True)
    with pytest.raises(DataError, match=r"one_hot=True needs labels .* below 3;.*3.*5"):
        fit(model, recipe, verbose=0)


def test_the_work_on_a_batch_is_done_in_its_order():
    def mapped(x, y):
        return tf.cast(x, tf.float32) + 1, (y + 1) % 10

    def halved(images, seed):
        return images / 2

    recipe = data.batches(SMALL, global_batch_size=8, map=mapped, augment=[halved], one_hot=True)
    x, y = recipe.finish((SMALL.inputs[:8], SMALL.labels[:8]), epoch=0, step=tf.constant(0, tf.int64))
    np.testing.assert_array_equal(x, (SMALL.inputs[:8].astype(np.float32) + 1) / 2)
    np.testing.assert_array_equal(y, data.one_hot((SMALL.labels[:8] + 1) % 10, 10))
