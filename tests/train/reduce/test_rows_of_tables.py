"""Gradients of rows of a table: their way through a message that is a sum, and what is added up for each row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from mirrorkit.train.reduce.sparse_gradient import SparseGradient, block_of, dense_of, folded, summed


def _rows(ids: Any, width: int = 3, seed: int = 0, dtype: Any = "float32") -> SparseGradient:
    """Values that are whole numbers, whose sums are exact in every order."""
    values = np.random.default_rng(seed).integers(-8, 9, (len(ids), width))
    return SparseGradient(tf.constant(ids, tf.int64, [len(ids)]), tf.constant(values, dtype, [len(ids), width]))


def _message(parts: list[SparseGradient], length: int | None = None) -> tf.Tensor:
    length = max(len(part.ids) for part in parts) if length is None else length
    return tf.add_n([block_of(part, i, len(parts), length) for i, part in enumerate(parts)])


def _added_up(parts: list[SparseGradient]) -> dict[int, list[float]]:
    found: dict[int, Any] = {}
    for part in parts:
        for row, value in zip(part.ids.numpy(), part.values.numpy().astype("float64"), strict=True):
            found[int(row)] = found.get(int(row), 0) + value
    return {row: value.tolist() for row, value in found.items()}


def _check(parts: list[SparseGradient], length: int | None = None) -> None:
    """`summed` has each row that was looked up, and no other, and for each the sum over all that looked it up."""
    found = summed(_message(parts, length))
    ids, sums = found.ids.numpy(), tf.gather(found.sums, found.number).numpy().astype("float64")
    expected = _added_up(parts)
    assert sorted(set(ids.tolist())) == sorted(expected)
    assert np.array_equal(ids, np.sort(ids))
    for row, value in zip(ids, sums, strict=True):  # each time that the row stands there
        assert value.tolist() == expected[row]
    firsts = np.unique(ids, return_index=True)[1]
    assert np.array_equal(found.number.numpy()[firsts], np.arange(len(expected)))  # a sum for each row
    assert not np.any(found.sums.numpy()[len(expected) :])
    assert found.ids.shape[0] == found.sums.shape[0]  # known beforehand


@pytest.mark.parametrize("ids", [[[3, 4], []], [[], [2]], [[9, 1, 9], [4]]])
def test_padding_is_no_row(ids: list[list[int]]) -> None:
    """Neither row 0 nor any other that nobody looked up: it would count as touched, and a lazy optimizer move it."""
    parts = [_rows(own, seed=i) for i, own in enumerate(ids)]
    _check(parts, length=6)
    assert 0 not in summed(_message(parts, 6)).ids.numpy()


@pytest.mark.parametrize("first", [0, 2**12 - 2, 2**24 - 2, 2**31 - 2, 2**35 - 8])
def test_ids_arrive_as_they_are(first: int) -> None:
    """Up to 2**35, where a float32 holds whole numbers up to 2**24 alone."""
    _check([_rows([*range(first, first + 5)]), _rows([first + 7, first], seed=1)])


def test_random_rows_of_several_replicas() -> None:
    """Some twice, some on several replicas, row 0 too; more of them on one replica than on another."""
    rng = np.random.default_rng(0)
    for seed in range(20):
        counts = rng.integers(0, 30, rng.integers(1, 5))
        counts[rng.integers(len(counts))] += 1  # somebody looks up something
        parts = [_rows(rng.integers(0, 2 ** rng.integers(2, 36), n), seed=seed + i) for i, n in enumerate(counts)]
        _check(parts, length=int(counts.max()) + int(rng.integers(0, 3)))


def test_a_value_that_is_not_finite_stays_where_it_is() -> None:
    """One replica's infinity is seen in its row, and spoils no other row and no id."""
    rows = SparseGradient(tf.constant([4, 6], tf.int64), tf.constant([[np.inf, 1.0], [2.0, np.nan]]))
    found = summed(_message([rows, _rows([5, 9], width=2)]))
    assert found.ids.numpy().tolist() == [4, 5, 6, 9]
    finite = tf.reduce_all(tf.math.is_finite(found.sums), 1).numpy()
    assert finite.tolist() == [False, True, False, True]


@pytest.mark.parametrize("size", [1, 5, 12])
def test_dense(size: int) -> None:
    """As TensorFlow makes it of `IndexedSlices`; rows beyond the size, and negative ones, are left out."""
    rows = _rows([3, 0, 3, -1, 11, 4, 0])
    expected = np.zeros((12, 3))
    for row, value in zip(rows.ids.numpy(), rows.values.numpy(), strict=True):
        if row >= 0:
            expected[row] += value
    within = tf.where(rows.ids < size, rows.ids, -1)
    np.testing.assert_array_equal(dense_of(within, rows.values, size), expected[:size])


def test_a_table_folded_for_comparisons_is_the_same_by_rows_and_dense(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mirrorkit.train.reduce.sparse_gradient._FOLDED", 1024 * 3 + 2)  # numbers, of 1024 rows
    rows = _rows([0, 1, 1024, 1025, 1, 2999])
    dense = dense_of(rows.ids, rows.values, 3000)
    by_rows = folded(tf.IndexedSlices(rows.values, rows.ids))
    assert by_rows.shape == (1024, 3)
    np.testing.assert_array_equal(folded(dense), by_rows)
    np.testing.assert_array_equal(by_rows[1], dense[1] + dense[1025])
    assert not np.array_equal(folded(tf.roll(dense, 1, 0)), by_rows)


def test_a_kernel_is_folded_along_its_last_dimension(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mirrorkit.train.reduce.sparse_gradient._FOLDED", 10)
    kernel = np.random.default_rng(0).normal(size=(3, 3, 2, 4))
    rows = kernel.reshape(18, 4)
    np.testing.assert_allclose(folded(tf.constant(kernel)), [rows[0::2].sum(0), rows[1::2].sum(0)], rtol=1e-12)
    assert folded(tf.ones([2, 11])).shape == (1, 11)  # a row longer than that stays whole
