"""arrays, Split, one_hot and its inverse."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorkit import data
from mirrorkit.errors import DataError

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
        (PIXELS.astype(object), LABELS, {}, "dtype object"),
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
