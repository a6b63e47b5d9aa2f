from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from mirrorkit.train.first_batch.fingerprints import fingerprints, parted

SIZES = [0, 1, 7, 4096, 2**20, 2**20 + 1, 2_500_000]


def number_of(size: int) -> np.ndarray:
    return np.random.default_rng(size).normal(size=size).astype("float32")


@pytest.mark.parametrize("size", SIZES)
def test_a_fingerprint_is_the_norm_and_a_weighted_sum(size):
    value = number_of(size)
    ((norm, total),) = fingerprints([tf.constant(value)])
    np.testing.assert_allclose(norm, np.linalg.norm(value.astype(float)), rtol=1e-6)
    assert abs(total) <= 2 * np.abs(value).sum()


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("size", SIZES[1:])
def test_one_number_and_the_order_count(exact, size):
    value = number_of(size)
    changed = value.copy()
    changed[size // 2] += np.float32(0.01)
    (before, after, turned) = fingerprints([value, changed, value[::-1]], exact=exact)
    assert np.abs(after - before).max() > 1e-5
    assert size == 1 or np.abs(turned - before).max() > 1e-5


def test_an_exact_one_sees_the_sign_of_zero_and_the_other_does_not():
    zeros = [np.zeros(3, np.float32), -np.zeros(3, np.float32)]
    assert (fingerprints(zeros)[0] == fingerprints(zeros)[1]).all()
    assert (fingerprints(zeros, exact=True)[0] != fingerprints(zeros, exact=True)[1]).any()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "int64", "uint32", "bool", "complex64"])
@pytest.mark.parametrize("exact", [False, True])
def test_any_numeric_dtype(dtype, exact):
    value = tf.cast(tf.constant([[0, 1], [2, 3]]), dtype)
    found = fingerprints([value, tf.transpose(value), tf.constant(0, tf.int32)], exact=exact)
    assert np.isfinite(found).all()
    assert (found[0] != found[1]).any() or dtype == "bool"


def rows(*of_workers: list[float]) -> np.ndarray:
    """Fingerprints of a single tensor on each worker, or of several."""
    return np.array([[[value, -value] for value in of_worker] for of_worker in of_workers])


def test_the_chief_is_right_where_there_are_two():
    assert list(parted(rows([1.0, 2.0], [1.0, 3.0]), 0.0)) == [(1, [1])]


def test_the_most_are_right_where_there_are_three():
    assert list(parted(rows([1.0], [2.0], [2.0]), 0.0)) == [(0, [0])]
    assert list(parted(rows([1.0], [2.0], [1.0]), 0.0)) == [(0, [1])]
    assert list(parted(rows([1.0], [2.0], [3.0]), 0.0)) == [(0, [1, 2])]


def test_nan_and_infinite_numbers_are_equal_to_themselves_alone():
    for value in (np.nan, np.inf):
        assert list(parted(rows([value], [value]), 1.0)) == []
        assert list(parted(rows([value], [1.0]), 1.0)) == [(0, [1])]
