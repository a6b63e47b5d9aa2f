"""Rows of batches from objects and from arrays; errors name the item."""

from __future__ import annotations

import numpy as np
import pytest
from own_items import Ascending, Faulty, Items, Together

from mirrorkit.errors import DataError
from mirrorkit.fetching.fetcher import Fetcher, holds_arrays, lengths
from mirrorkit.fetching.forms import empty

X = np.arange(40 * 3).reshape(40, 3)
Y = np.arange(40) % 7


def fetch(fetcher, numbers):
    out = empty(fetcher.form, len(numbers))
    rows = np.argsort(numbers)
    fetcher.fill(np.array(numbers)[rows], rows, out)
    return out


@pytest.mark.parametrize(
    "items", [Items(X, Y), Together(X, Y), (X, Y), (Ascending(X), Ascending(Y)), [*zip(X, Y, strict=True)]]
)
def test_rows_come_in_the_order_asked_for(items):
    numbers = [30, 2, 3, 17]
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
    (x,) = fetch(fetcher, [6, 4, 5])
    assert array.asked == [slice(4, 7)]
    np.testing.assert_array_equal(x, X[[6, 4, 5]])


def test_a_dict_of_arrays_is_a_dict():
    fetcher = Fetcher({"y": Y, "x": (X, X + 1)})
    one, more, y = fetch(fetcher, [5, 1])
    np.testing.assert_array_equal(one, X[[5, 1]])
    np.testing.assert_array_equal(more, X[[5, 1]] + 1)
    np.testing.assert_array_equal(y, Y[[5, 1]])


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
        fetch(fetcher, [3, 17, 5])


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
        fetch(Fetcher(Bad(X, Y)), [3, 17, 5])

    class OnlyTogether(Bad):
        __getitem__ = Items.__getitem__

    with pytest.raises(DataError, match=r"items 3, 5, 17, ... \(3\) of OnlyTogether"):
        fetch(Fetcher(OnlyTogether(X, Y)), [3, 17, 5])


def test_items_that_are_missing_among_those_fetched_together():
    class Short(Together):
        def __getitems__(self, numbers):
            return super().__getitems__(numbers)[1:]

    with pytest.raises(DataError, match="2 items for 3 numbers"):
        fetch(Fetcher(Short(X, Y)), [3, 17, 5])


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
        fetch(Fetcher((X, Damaged(Y))), [3, 17, 5])
