"""Splits: arrays in tuples and dicts, labels, and the drawn digits."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings, strategies as st

from mirrorkit import data
from mirrorkit.data.nests import checked, describe, leaves
from mirrorkit.errors import DataError, RecipeError

# --- arrays, Split, one_hot and its inverse


PIXELS = np.zeros((6, 4, 4, 1), np.uint8)
LABELS = np.array([0, 1, 2, 0, 1, 2])


def test_labels_become_int64_indices_and_pixels_stay():
    split = data.arrays(PIXELS, LABELS.astype(np.uint8)[:, None])
    assert split.images.dtype == np.uint8
    assert split.labels.dtype == np.int64
    np.testing.assert_array_equal(split.labels, LABELS)
    assert (len(split), split.num_classes) == (6, 3)
    assert split.inputs is split.images


def test_float_labels_are_left_alone():
    targets = np.linspace(0, 1, 12).reshape(6, 2)
    split = data.arrays(PIXELS, targets)
    np.testing.assert_array_equal(split.labels, targets)
    assert split.num_classes is None
    assert data.arrays(PIXELS, data.one_hot(LABELS, 3), num_classes=3).num_classes == 3


@pytest.mark.parametrize(
    ("images", "labels", "options", "words"),
    [
        (PIXELS, LABELS[:5], {}, "images holds 6 .*labels holds 5"),
        (PIXELS, LABELS, {"num_classes": 2}, "2 do not, the first is 2 at 2"),
        (PIXELS, -LABELS, {}, "the first is -1; .*float32"),
        (PIXELS, -LABELS, {"num_classes": 3}, "first is -1 at 1"),
        (PIXELS[:0], LABELS[:0], {}, "no example"),
        (PIXELS, LABELS, {"num_classes": 0}, "num_classes .* found 0"),
        (PIXELS, LABELS, {"sample_weight": np.ones(5)}, "sample_weight holds 5"),
        (PIXELS, LABELS, {"sample_weight": np.ones((6, 1))}, "one number per example"),
        (PIXELS, np.zeros((6, 4)), {"sample_weight": np.ones((6, 3))}, r"found \(6, 3\)"),
        (PIXELS, (np.zeros((6, 4)),), {"sample_weight": np.ones((6, 4))}, r"found \(6, 4\)"),
        (PIXELS.astype(object), LABELS, {}, "must be numbers"),
        (PIXELS, np.eye(3, dtype=int)[LABELS], {}, "one-hot rows of integers"),
        (PIXELS, np.zeros((6, 4)), {"num_classes": 3}, r"rows \[N, 3\]"),
        ({"a": PIXELS, "b": PIXELS[:3]}, LABELS, {}, r"images\['b'\] holds 3"),
        (PIXELS, {"p": LABELS, "q": (LABELS[1:],)}, {}, r"labels\['q'\]\[0\] holds 5"),
        (PIXELS, LABELS, {"sample_weight": {"p": np.ones(6)}}, "found a dict"),
        (PIXELS, None, {"sample_weight": np.ones(6)}, "sample_weight without labels"),
        (PIXELS, None, {"num_classes": 3}, "num_classes without labels"),
    ],
)
def test_bad_arrays_are_refused(images, labels, options, words):
    with pytest.raises(DataError, match=words):
        data.arrays(images, labels, **options)


def test_tuples_and_nested_dicts_travel_together():
    given = ({"a": PIXELS, "b": (np.arange(6.0), LABELS)}, np.ones((6, 2)))
    split = data.arrays(given, (LABELS, {"p": -np.arange(6.0)}), sample_weight=np.arange(6))
    assert (len(split), split.num_classes) == (6, None)
    x, (classes, last), weight = split[np.array([5, 0])].as_element()
    np.testing.assert_array_equal(x[0]["b"][0], [5, 0])
    np.testing.assert_array_equal(x[0]["b"][1], LABELS[[5, 0]])
    np.testing.assert_array_equal(classes, LABELS[[5, 0]])
    np.testing.assert_array_equal(last["p"], [-5, 0])
    np.testing.assert_array_equal(weight, [5, 0])
    assert weight.dtype == np.float32
    np.testing.assert_array_equal(split[2:4].sample_weight, [2, 3])
    inputs = "['a'] uint8 [6, 4, 4, 1], ['b'][0] float64 [6], ['b'][1] int64 [6]"
    assert repr(data.arrays(given[0], (LABELS,))) == (
        f"Split(6 examples, inputs {inputs}, labels [0] int64 [6], None classes)"
    )


def test_labels_may_be_left_out():
    split = data.arrays(PIXELS)
    assert (len(split), split.labels, split.num_classes) == (6, None, None)
    assert repr(split) == "Split(6 examples, inputs uint8 [6, 4, 4, 1], no labels)"
    (part,) = split[LABELS == 1].as_element()
    assert part.shape == (2, 4, 4, 1)
    assert data.arrays((PIXELS, LABELS), None).as_element()[0][1] is LABELS


@settings(deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1), st.integers(10, 12))
def test_class_indices_is_the_inverse_of_one_hot(labels, num_classes):
    rows = data.one_hot(np.array(labels), num_classes)
    assert rows.dtype == np.float32
    assert rows.shape == (len(labels), num_classes)
    assert (rows.sum(axis=1) == 1).all()
    assert rows.max() == 1
    indices = data.class_indices(rows)
    assert indices.dtype == np.int64
    np.testing.assert_array_equal(indices, labels)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: data.one_hot(np.array([0, 3]), 3), "the first is 3 at 1"),
        (lambda: data.one_hot(np.array([0.0, 1.0]), 3), "integer class indices"),
        (lambda: data.class_indices(np.zeros(3)), r"rows \[N, C\]"),
        (lambda: data.arrays(PIXELS, LABELS)[6:], "selects none"),
        (lambda: data.arrays(PIXELS, LABELS)[2], r"split\[2:3\]"),
    ],
)
def test_what_cannot_be_meant_is_refused(call, words):
    with pytest.raises(DataError, match=words):
        call()


# --- arrays in tuples and dicts: what lists and tuples mean, paths, rows


A, B, ONE = np.arange(12.0).reshape(6, 2), np.arange(18).reshape(6, 3), np.arange(6)
NEST = {"b": A, "a": (B, {"c": ONE})}


class Pair(NamedTuple):
    left: np.ndarray
    right: np.ndarray


def test_each_array_has_its_path_in_the_order_given():
    assert [path for path, _ in leaves("x", NEST)] == ["x['b']", "x['a'][0]", "x['a'][1]['c']"]
    assert [leaf is array for (_, leaf), array in zip(leaves("x", NEST), (A, B, ONE), strict=True)] == [True] * 3
    assert describe(NEST) == "['b'] float64 [6, 2], ['a'][0] int64 [6, 3], ['a'][1]['c'] int64 [6]"


@pytest.mark.parametrize("given", [NEST, (A, B), (A,), Pair(A, B), {"x": ((A,), B)}])
def test_tuples_and_dicts_of_arrays_stay_what_they_are(given):
    found = checked("x", given)
    assert [path for path, _ in leaves("", found)] == sorted(path for path, _ in leaves("", given))
    for one, other in zip(tf.nest.flatten(found), tf.nest.flatten(given), strict=True):
        np.testing.assert_array_equal(one, other)


def test_tensors_and_lists_of_numbers_become_arrays():
    found = checked("x", (tf.constant(A), [1, 2, 3, 4, 5, 6]))
    assert [type(leaf) for _, leaf in leaves("x", found)] == [np.ndarray] * 2
    np.testing.assert_array_equal(found[1], [1, 2, 3, 4, 5, 6])


@pytest.mark.parametrize("rows", [(0, 1, 2), ((0, 1), (2, 3)), [[0, 1], [2, 3]], ([1, 2], [3, 4])])
def test_tuples_and_lists_of_numbers_are_arrays(rows):
    np.testing.assert_array_equal(checked("x", rows), np.asarray(rows))


@pytest.mark.parametrize(
    ("images", "path"),
    [
        ([A, A], "images"),
        ([*A], "images"),
        ({"a": [A, A]}, r"images\['a'\]"),
        ((A, [B, B]), r"images\[1\]"),
        ([{"a": A}, B], "images"),
    ],
)
def test_a_list_of_arrays_is_refused(images, path):
    with pytest.raises(DataError, match=rf"^{path} is a list that may mean several"):
        data.arrays(images, ONE)


def test_a_tuple_of_examples_is_several_arrays():
    """As `images, labels = zip(*examples)` gives them."""
    with pytest.raises(DataError, match=r"^images\[0\] holds 2 examples and labels holds 6.*np\.stack"):
        data.arrays(tuple(A), tuple(ONE))


@pytest.mark.parametrize(
    ("x", "words"),
    [
        ((A, B.astype(str)), r"x\[1\] .* text"),
        ((A, np.float32(3)), r"x\[1\] .* shape \[N"),
        ((A, {}), r"x\[1\] is an empty dict"),
        ({"a": A, "b": None}, r"x\['b'\] is NoneType"),
        ({"a": (A, [[1], [2, 3]])}, r"x\['a'\]\[1\] is not an array"),
        (np.ma.masked_equal(A, A[0, 0]), "masked values"),
    ],
)
def test_what_is_no_array_is_named_by_its_path(x, words):
    with pytest.raises(DataError, match=words):
        checked("x", x)


# --- the drawn digits: the same each time, of all classes


@pytest.mark.parametrize("shape", [(28, 28, 1), (32, 32, 3)])
def test_shapes_dtypes_and_determinism(shape):
    one, two = (data.synthetic(shape, train=100, test=20, seed=3) for _ in range(2))
    other = data.synthetic(shape, train=100, test=20, seed=4)
    assert one.train.images.shape == (100, *shape)
    assert one.train.images.dtype == np.uint8
    assert one.train.labels.dtype == np.int64
    np.testing.assert_array_equal(one.train.images, two.train.images)
    np.testing.assert_array_equal(one.test.labels, two.test.labels)
    assert (one.train.images != other.train.images).any()
    assert set(one.train.labels) == set(range(10))
    assert one.synthetic


def test_fewer_classes_and_test_images_whatever_the_number_of_training_images():
    few, many = (data.synthetic(train=n, test=50, num_classes=2) for n in (50, 100))
    assert set(many.train.labels) == {0, 1}
    assert (many.num_classes, many.class_names) == (2, ("0", "1"))
    np.testing.assert_array_equal(few.test.images, many.test.images)
    assert not (few.train.images == few.test.images).all(axis=(1, 2, 3)).any()


def test_what_it_cannot_draw_is_refused():
    shapes = [{"shape": shape} for shape in ((8, 8, 1), (28, 28, 2), (28, 28))]
    for options in (*shapes, {"train": 0}, {"seed": -1}, {"num_classes": 11}):
        with pytest.raises(RecipeError, match="synthetic"):
            data.synthetic(**options)
