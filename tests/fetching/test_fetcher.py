"""Items become the arrays of batches: their forms, and errors that name an item."""

from __future__ import annotations

import collections

import numpy as np
import pytest
from own_items import Ascending, Faulty, Items, Together
from PIL import Image

from mirrorkit.errors import DataError
from mirrorkit.fetching.fetcher import Fetcher, holds_arrays, lengths
from mirrorkit.fetching.forms import as_arrays, described, flat, form_of, pack

# --- rows of batches from objects and from arrays; errors name the item


X = np.arange(40 * 3).reshape(40, 3)
Y = np.arange(40) % 7


def fetch(fetcher, numbers):
    return fetcher.arrays(np.array(numbers))


@pytest.mark.parametrize(
    "items", [Items(X, Y), Together(X, Y), (X, Y), (Ascending(X), Ascending(Y)), [*zip(X, Y, strict=True)]]
)
def test_rows_are_those_asked_for(items):
    numbers = [2, 3, 17, 30]
    x, y = fetch(Fetcher(items), numbers)
    np.testing.assert_array_equal(x, X[numbers])
    np.testing.assert_array_equal(y, Y[numbers])


def test_text_stays_text():
    text = np.array([b"a\0", "é"] * 20, object)
    for items in (Items(X, text), (X, text), [*zip(X, text, strict=True)]):
        assert fetch(Fetcher(items), [3, 4])[1].tolist() == ["é".encode(), b"a\0"]


def test_consecutive_rows_of_an_array_are_a_slice():
    array = Ascending(X)
    fetcher = Fetcher(array)
    array.asked.clear()
    (x,) = fetch(fetcher, [4, 5, 6])
    assert array.asked == [slice(4, 7)]
    np.testing.assert_array_equal(x, X[4:7])


def test_a_dict_of_arrays_is_a_dict():
    fetcher = Fetcher({"y": Y, "x": (X, X + 1)})
    one, more, y = fetch(fetcher, [1, 5])
    np.testing.assert_array_equal(one, X[[1, 5]])
    np.testing.assert_array_equal(more, X[[1, 5]] + 1)
    np.testing.assert_array_equal(y, Y[[1, 5]])


def test_what_is_an_array():
    assert holds_arrays((X, {"a": Y}))
    assert not any(map(holds_arrays, (Items(X, Y), (X, Items(X, Y)), [X], (), {}, np.float32(1), "a", None)))
    shaped = Together(X, Y)
    shaped.shape, shaped.dtype = X.shape, X.dtype
    assert not holds_arrays(shaped)
    assert lengths((X, Y[:30])) == {30, 40}
    assert lengths(Items(X, Y)) == {40}


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (ValueError("bad file"), r"failed: ValueError: bad file \(.*own_items.py, line \d+, in"),
        (KeyError("label"), "failed: KeyError: 'label'"),
        (StopIteration(), "failed: StopIteration"),
        (None, "NoneType"),
        ((np.zeros(3), 1), r"\(float64 \[3\], int64\), and item 0 is \(float32 \[3\], int64\)"),
        ((np.zeros(3, np.float32), 1.0), r"\(float32 \[3\], float64\)"),
        ((np.zeros(3, np.float32),), r"\(float32 \[3\],\)"),
        ({"x": 1}, r"\{'x': int64\}, and item 0 is \(float32"),
    ],
    ids=repr,
)
def test_a_faulty_item_is_named(fault, words):
    fetcher = Fetcher(Faulty(17, fault))
    fetch(fetcher, [16, 18])
    with pytest.raises(DataError, match=rf"tem 17 of Faulty .*{words}"):
        fetch(fetcher, [3, 5, 17])


def test_none_at_the_end_of_an_item_is_left_out():
    fetcher = Fetcher(Faulty(17, (np.ones(3, np.float32), np.int64(2), None)))
    assert [array[0].tolist() for array in fetch(fetcher, [17])] == [[1.0, 1.0, 1.0], 2]


def test_of_items_fetched_together_the_faulty_one_is_found():
    class Bad(Together):
        def __getitems__(self, numbers):
            if 17 in numbers:
                raise OSError("disk")
            return super().__getitems__(numbers)

        def __getitem__(self, number):
            if number == 17:
                raise OSError("disk, at this one")
            return Items.__getitem__(self, number)

    with pytest.raises(DataError, match="item 17 of Bad failed: OSError: disk, at this one"):
        fetch(Fetcher(Bad(X, Y)), [3, 5, 17])

    class OnlyTogether(Bad):
        __getitem__ = Items.__getitem__

    with pytest.raises(DataError, match=r"items 3, 5, 17, ... \(3\) of OnlyTogether"):
        fetch(Fetcher(OnlyTogether(X, Y)), [3, 5, 17])


def test_items_that_are_missing_among_those_fetched_together():
    class Short(Together):
        def __getitems__(self, numbers):
            return super().__getitems__(numbers)[1:]

    with pytest.raises(DataError, match="2 items for 3 numbers"):
        fetch(Fetcher(Short(X, Y)), [3, 5, 17])


def test_an_array_that_changes_its_shape():
    array = Ascending(X)
    fetcher = Fetcher(array)
    array.array = X[:, :2]
    with pytest.raises(DataError, match=r"Ascending .* \[2, 2\]"):
        fetch(fetcher, [3, 17])


def test_a_damaged_row_of_an_array_is_found():
    class Damaged(Ascending):
        def __getitem__(self, rows):
            if 17 in np.arange(40)[rows if isinstance(rows, slice) else np.atleast_1d(rows)]:
                raise OSError("checksum")
            return super().__getitem__(rows)

    with pytest.raises(DataError, match=r"item 17 of tuple .*checksum"):
        fetch(Fetcher((X, Damaged(Y))), [3, 5, 17])


# --- what an item may be, and what it is made of


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
