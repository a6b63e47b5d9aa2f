"""The bits of variables as whole numbers, and their checksums."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from mirrorkit.checks.bits import checksums, to_words
from mirrorkit.errors import StepError


def of_bytes(data: bytes, dtype: tf.DType, *shape: int) -> tf.Tensor:
    return tf.constant(np.frombuffer(data, dtype.as_numpy_dtype).reshape(shape))


def test_text_has_no_words() -> None:
    with pytest.raises(StepError, match="variable of string"):
        to_words(tf.constant(["a"]))


@pytest.mark.parametrize("dtype", [tf.uint8, tf.bfloat16, tf.float32, tf.int64, tf.complex128], ids=lambda t: t.name)
def test_every_single_bit_changes_the_checksum(dtype: tf.DType) -> None:  # of every size; two words in one
    """All variants at once: each is one of a list of tensors."""
    count = 2
    size = count * dtype.size
    data = np.random.default_rng(1).integers(0, 256, size, "uint8")
    flips = np.packbits(np.eye(8 * size, dtype="uint8"), axis=1)
    variants = [of_bytes(row.tobytes(), dtype, count) for row in np.concatenate([data[None], data[None] ^ flips])]
    sums = checksums(variants).numpy()
    assert len(set(sums.tolist())) == 1 + 8 * size


def test_the_order_counts() -> None:
    values = np.array([0.0, 1.0, -1.0, 2.0, 0.5, 1e-8, 3e38, -0.0, np.inf, np.nan], "float32")
    variants = [values]
    for i in range(len(values)):
        for j in range(i):
            swapped = values.copy()
            swapped[[i, j]] = swapped[[j, i]]
            variants.append(swapped)
    variants += [np.roll(values, shift) for shift in range(2, len(values) - 1)]
    # sums that weigh each place by its number alone would miss this one
    variants += [np.array(pattern, "float32") for pattern in ([1, 0, 0, 1], [0, 1, 1, 0])]
    sums = checksums([tf.constant(v) for v in variants]).numpy()
    assert len(set(sums.tolist())) == len(variants)


def test_large_tensors_and_the_same_change_twice() -> None:
    values = np.random.default_rng(2).normal(size=100_000).astype("float32")
    twice, negated = values.copy(), values.copy()
    twice[[10, 90_000]] += [1e-3, -1e-3]
    negated[[5, 50_000]] *= -1  # flips the highest bit of two words
    sums = checksums([tf.constant(v) for v in (values, twice, negated)]).numpy()
    assert len(set(sums.tolist())) == 3
    assert checksums([tf.constant(values)]).numpy()[0] == sums[0]
