"""Arrays in tuples and dicts: what lists and tuples mean, paths, rows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from mirrorkit.data.nests import checked, describe, leaves
from mirrorkit.errors import DataError

A, B, ONE = np.arange(12.0).reshape(6, 2), np.arange(18).reshape(6, 3), np.arange(6)
NO_LABELS = object()
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
    found = checked({"x": given, "y": ONE})["x"]
    tf.nest.assert_same_structure(found, given)  # their types too
    assert list(found) == list(given)
    tf.nest.map_structure(np.testing.assert_array_equal, found, given)


def test_tensors_and_lists_of_numbers_become_arrays():
    found = checked({"x": (tf.constant(A), [1, 2, 3, 4, 5, 6]), "y": ONE.tolist()})
    assert [type(leaf) for _, leaf in leaves("x", found["x"])] == [np.ndarray] * 2
    np.testing.assert_array_equal(found["x"][1], [1, 2, 3, 4, 5, 6])


@pytest.mark.parametrize("rows", [(0, 1, 2), ((0, 1), (2, 3)), [[0, 1], [2, 3]], ([1, 2], [3, 4])])
def test_tuples_and_lists_of_numbers_are_arrays(rows):
    np.testing.assert_array_equal(checked({"x": rows})["x"], np.asarray(rows))


@pytest.mark.parametrize("make", [list, tuple])
def test_a_sequence_of_examples_is_one_array_where_the_labels_say_so(make):
    """As `images, labels = zip(*examples)` gives them."""
    rows, labels = make(A), make(np.int64(i) for i in range(6))
    found = checked({"images": rows, "labels": labels})
    np.testing.assert_array_equal(found["images"], A)
    np.testing.assert_array_equal(found["labels"], ONE)
    both = checked({"images": rows, "labels": make(B)})
    np.testing.assert_array_equal(both["labels"], B)


@pytest.mark.parametrize(
    ("images", "labels", "path"),
    [
        ([A, A], ONE, "images"),  # two inputs of six
        ([A, A], ONE[:2], None),  # two examples [6, 2]
        ([A, A], ONE[:5], "images"),  # neither
        ([A, B], ONE, "images"),
        ([A], ONE, "images"),
        ({"a": [A, A]}, ONE, r"images\['a'\]"),
        ((A, [B, B]), ONE, r"images\[1\]"),
        ([{"a": A}, B], ONE, "images"),
        (A, [ONE, ONE], "labels"),
        ([A, A], [ONE, ONE], "images"),  # two examples with labels [6], or two inputs and two outputs
        ([np.eye(3)] * 3, np.arange(3), "images"),  # three inputs of three examples, or three examples [3, 3]
        ([A, A], NO_LABELS, "images"),
    ],
)
def test_a_list_that_may_mean_several_arrays_is_refused(images, labels, path):
    given = {"images": images} if labels is NO_LABELS else {"images": images, "labels": labels}
    if path is None:
        assert checked(given)["images"].shape == (2, 6, 2)
        return
    with pytest.raises(DataError, match=rf"^{path} is a list of \d arrays"):
        checked(given)


@pytest.mark.parametrize(
    ("x", "words"),
    [
        ((A, B.astype(str)), r"x\[1\] .* text"),
        ((A, np.float32(3)), r"x\[1\] .* shape \[N"),
        ((A, {}), r"x\[1\] is an empty dict"),
        ({"a": A, "b": None}, r"x\['b'\] .*dtype object"),
        ({"a": (A, [[1], [2, 3]])}, r"x\['a'\]\[1\] is not an array"),
        (np.ma.masked_equal(A, A[0, 0]), "masked values"),
    ],
)
def test_what_is_no_array_is_named_by_its_path(x, words):
    with pytest.raises(DataError, match=words):
        checked({"x": x, "y": ONE})
