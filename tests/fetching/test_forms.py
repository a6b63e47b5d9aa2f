"""What an item may be, and what it is made of."""

from __future__ import annotations

import collections

import numpy as np
import pytest
from PIL import Image

from mirrorkit.fetching.forms import as_arrays, described, empty, flat, form_of, pack

Point = collections.namedtuple("Point", "a b")


@pytest.mark.parametrize(
    ("item", "want"),
    [
        (np.uint8([1, 2]), "uint8 [2]"),
        (np.array([1.0, 2.0], ">f4"), "float32 [2]"),
        (3, "int64"),
        (True, "bool"),
        (0.5, "float64"),
        (np.float16(1), "float16"),
        ([[1, 2], [3, 4]], "int64 [2, 2]"),
        ([(0.5, 1), (2, 3)], "float64 [2, 2]"),
        ("é", "text"),
        (b"a\0", "text"),
        (["a", "bc"], "text [2]"),
        (Image.new("RGB", (4, 2)), "uint8 [2, 4, 3]"),
        (Point(np.zeros(2, np.float32), 1), "(float32 [2], int64)"),
        ({"b": 1, "a": (np.int8([1]), {"c": "x"})}, "{'a': (int8 [1], {'c': text}), 'b': int64}"),
        ((1,), "(int64,)"),
    ],
)
def test_items_become_arrays(item, want):
    arrays = as_arrays(item)
    form = form_of(arrays)
    assert described(form) == want
    assert form_of(pack(form, list(flat(arrays)))) == form
    assert [array.shape[1:] for array in empty(form, 3)] == [leaf.shape for leaf in flat(form)]


def test_values_stay_what_they_are():
    assert as_arrays(np.array([1.0, 2.5], ">f4")).tolist() == [1.0, 2.5]
    assert as_arrays(b"a\0\0").item() == b"a\0\0"
    assert as_arrays([b"a\0", b""]).tolist() == [b"a\0", b""]
    assert as_arrays("é").item() == "é".encode()
    assert as_arrays(np.array([["a", "é"]])).tolist() == [[b"a", "é".encode()]]


@pytest.mark.parametrize(
    ("item", "words"),
    [
        (None, "it is NoneType"),
        ({"a": (1, None)}, r"its part \['a'\]\[1\] is NoneType"),
        ({"a": object()}, r"its part \['a'\] is object"),
        (np.datetime64("2020-01-01"), r"datetime64\[D\]"),
        (np.zeros(2, [("a", "f4")]), "it is an array of"),
        ([[1], [2, 3]], "it is not an array"),
        ([np.zeros(2), np.zeros(2)], "may mean several arrays"),
        ([{"a": 1}], "may mean several arrays"),
        (np.ma.masked_array([1, 2], [True, False]), "masked values"),
        ({}, "it is an empty dict"),
        ({"a": ()}, r"its part \['a'\] is an empty tuple"),
    ],
)
def test_what_is_no_array_is_named(item, words):
    with pytest.raises(ValueError, match=words):
        as_arrays(item)


@pytest.mark.parametrize(
    "other",
    [
        {"a": np.zeros(2), "b": (1, 2)},
        {"a": np.zeros(2, np.float32), "b": (1,)},
        {"a": np.zeros(2, np.float32), "b": (1, 2.0)},
        {"a": np.zeros(3, np.float32), "b": (1, 2)},
        {"a": np.zeros(2, np.float32), "c": (1, 2)},
        {"a": np.zeros(2, np.float32), "b": 1},
        {"a": {"a": np.zeros(2, np.float32)}, "b": (1, 2)},
        (1, 2),
        1,
    ],
)
def test_another_form_does_not_fit(other):
    form = form_of(as_arrays({"b": (1, 2), "a": np.zeros(2, np.float32)}))
    assert form_of(as_arrays({"a": np.ones(2, np.float32), "b": (3, 4)})) == form
    assert form_of(as_arrays(other)) != form
