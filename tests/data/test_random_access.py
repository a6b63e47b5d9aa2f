"""source: each item fetched once by one worker, errors that name an item; the batches are in test_preparation.py."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tensorflow as tf
from own_items import Faulty, Items
from recipe_helpers import SPLIT, assert_same, collect, contexts, joined

from mirrorkit import data
from mirrorkit._keras import keras
from mirrorkit.errors import DataError, RecipeError
from mirrorkit.train.input.source import source_of


def items_of(split, **options) -> Items:
    return Items(split.images, split.labels, **options)


def test_an_epoch_goes_on_with_another_number_of_workers_each_item_once():
    items = Items(np.arange(123)[:, None], np.arange(123) % 7)
    recipe = data.source(items, global_batch_size=12, shuffle=True, seed=5)
    first = [collect(recipe.dataset(2, input_context=context).take(4)) for context in contexts(2)]
    items.fetched.clear()
    rest = [collect(recipe.dataset(2, 4, input_context=context)) for context in contexts(3)]
    assert len(items.fetched) == 123 - 48
    trained_on = [x.ravel().tolist() for worker in (*first, *rest) for x, _ in worker]
    assert sorted(itertools.chain(*trained_on)) == list(range(123))


def test_labels_and_weights_are_those_of_arrays():
    x, y, weight = np.zeros([9, 2]), np.arange(9, dtype=np.uint8)[:, None], np.arange(9)
    options = {"global_batch_size": 4, "shuffle": True, "one_hot": True}
    recipe = data.source((x, y, weight), num_classes=9, **options)
    same = data.batches(data.arrays(x, y, sample_weight=weight, num_classes=9), **options)
    assert recipe.num_classes == 9
    assert_same(collect(recipe.dataset()), collect(same.dataset()))
    assert [tensor.dtype for tensor in recipe.element_spec] == [tf.float64, tf.float32, tf.float32]
    classes, same = data.source((x, y), global_batch_size=4), data.batches(data.arrays(x, y), global_batch_size=4)
    assert classes.element_spec == same.element_spec  # uint8 has become int64
    assert_same(collect(classes.dataset()), collect(same.dataset()))


def test_a_map_makes_labels_of_dicts_with_text():
    items = [{"name": f"é{number}", "raw": b"\0\1", "nested": {"n": number}} for number in range(10)]
    bare = data.source(items, global_batch_size=4)
    (x,) = joined(collect(bare.dataset()))
    assert x["name"].tolist() == [f"é{number}".encode() for number in range(10)]
    assert set(x["raw"]) == {b"\0\1"}
    mapped = data.source(
        items,
        global_batch_size=4,
        shuffle=True,
        one_hot=True,
        num_classes=10,
        map=lambda item: (tf.strings.length(item["name"], "UTF8_CHAR"), item["nested"]["n"]),
    )
    x, y = joined(collect(mapped.dataset(1)))
    np.testing.assert_array_equal(y, data.one_hot(mapped.order(1), 10))
    assert set(x) == {2}


class Labelled(np.ndarray):
    """Has what tells a Series of pandas, which selects rows by their labels."""

    iloc = None


class NoLength:
    def __getitem__(self, number):
        return number


@pytest.mark.parametrize(
    ("items", "options", "words"),
    [
        (tf.data.Dataset.range(3), {}, "Dataset.* Loop"),
        (data.batches(SPLIT, global_batch_size=8), {}, "Batches.*__getitem__"),
        ("images/", {}, r"str\b.*mk\.data\.records"),
        ((number for number in range(3)), {}, "generator.*__getitem__.*from_function"),
        (NoLength(), {}, "NoLength.*__len__"),
        ({"train": [1, 2]}, {}, "dict.*must hold arrays"),
        ({"x": np.zeros(3), "n": np.array(3)}, {}, "must hold arrays"),
        ({}, {}, "dict.*must hold arrays"),
        (np.array(3), {}, "unsized"),
        (([1, 2], [3, 4]), {}, "tuple.*must hold arrays"),
        ([np.zeros(3), np.zeros(3)], {}, "list of arrays"),
        ((np.zeros(3), np.zeros(4)), {}, "3, 4 examples"),
        ({"x": (np.zeros(3), Labelled(3))}, {}, r"pandas .*to_numpy"),
        ([], {}, "no example"),
        ([1, 2], {"threads": 0}, "threads .* found 0"),
        ([1, 2], {"processes": 1.5}, r"processes .* found 1\.5"),
        ([1, 2], {"processes": 2, "threads": 2}, "threads=2 and processes=2"),
        ([(1, 2)], {"one_hot": True}, "one_hot.* num_classes="),
        ([(1, 2.0)], {"one_hot": True, "num_classes": 3}, "floats .3. or integers"),
        ([(1, [1.0, 2.0])], {"num_classes": 3}, r"float64 \[2\].*floats \[3\]"),
        ([(1, 2, [3])], {}, r"sample_weight.* int64 \[1\]"),
        ([1, 2], {"augment": [data.augment.flip()]}, r"augment.* \[None\]"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_what_does_not_fit_is_refused(items, options, words):
    with pytest.raises(DataError, match=words):
        data.source(items, global_batch_size=1, **options)


def test_items_that_are_drawn_are_refused():
    class Drawn(Items):
        def __getitem__(self, number):
            x, y = super().__getitem__(number)
            return x + np.random.default_rng().random(x.shape), y

    with pytest.raises(DataError, match="Item 0 of Drawn is different"):
        data.source(Drawn(np.zeros((9, 2)), np.zeros(9)), global_batch_size=1)
    nan = Items(np.full((9, 2), np.nan), np.zeros(9))
    assert data.source(nan, global_batch_size=1).num_examples == 9


def test_a_length_that_changes_is_an_error():
    items = [1, 2, 3]
    recipe = data.source(items, global_batch_size=2)
    items.append(4)
    with pytest.raises(DataError, match=r"held 3 .* holds 4"):
        recipe.dataset()


@pytest.mark.parametrize(
    ("length", "match"), [(-1, "should return >= 0"), (2**62, "has the length 46116860184"), (2**70, "fit")]
)
def test_a_length_that_is_none_is_an_error(length, match):
    class Long(Items):
        def __len__(self) -> int:
            return length

    with pytest.raises(RecipeError, match=match):
        data.source(Long(SPLIT.images, SPLIT.labels), global_batch_size=2)


def test_an_item_that_holds_itself_is_named():
    item: list = []
    item.append(item)
    with pytest.raises(DataError, match="Item 0 of list cannot be used"):
        data.source([item], global_batch_size=1)


@pytest.mark.parametrize(
    ("fault", "options", "words"),
    [
        ((np.zeros(2, np.float32), 1), {}, r"Item 33 of Faulty is \(float32 \[2\]"),
        ((np.zeros(3, np.float32), 4), {"num_classes": 4}, "label of item 33 is 4"),
    ],
)
def test_a_faulty_item_is_named(fault, options, words):
    with pytest.raises(tf.errors.OpError, match=words):
        collect(data.source(Faulty(33, fault), global_batch_size=8, **options).dataset())


def test_workers_with_other_items_notice_it():
    one, same, other, longer = (
        data.source(items, global_batch_size=4, shuffle=True)
        for items in (items_of(SPLIT), (SPLIT.images, SPLIT.labels), items_of(SPLIT[::-1]), items_of(SPLIT[:50]))
    )
    for position in ((0, 0), (1, 3), (0, one.steps_per_epoch)):
        assert one.identity(*position) == same.identity(*position)
        assert one.identity(*position) != longer.identity(*position)
    assert one.identity(1, 3) != other.identity(1, 3)
    text = [data.source([letter, "b"], global_batch_size=1).identity(0, 0) for letter in "aac"]
    assert text[0] == text[1] != text[2]
    assert source_of(one).has_identity


def test_batches_of_keras_are_refused():
    class Own(keras.utils.PyDataset):
        def __len__(self):
            return 3

        def __getitem__(self, number):
            return np.zeros([8, 2]), np.zeros(8)

    with pytest.raises(RecipeError, match=r"Own\b.*whole batches"):
        data.source(Own(), global_batch_size=1)
