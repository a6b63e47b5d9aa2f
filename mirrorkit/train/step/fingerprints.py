"""Few numbers that tell tensors apart: compared between workers in place of all their values."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf

from mirrorkit.bits import checksums

_GOLDEN = (math.sqrt(5) - 1) / 2
_ROW = 4096


def fingerprints(tensors: Sequence[tf.Tensor]) -> np.ndarray:
    """Return two numbers for each tensor, float64 [tensors, 2]: its norm, and a sum in which every place has a weight.

    They are computed where the tensor lies. Where numbers differ by a share of the norm, so do these, by about as much.
    """
    return np.array(tf.stack([_fingerprint(tensor) for tensor in tensors])) if tensors else np.zeros([0, 2])


def exact_fingerprints(tensors: Sequence[tf.Tensor]) -> np.ndarray:
    """Return the two halves of a checksum of each tensor's bits, float64 [tensors, 2]."""
    words = checksums(tensors).numpy() if tensors else np.zeros(0, np.int64)
    return words.view(np.uint32).reshape(-1, 2).astype(np.float64)


def _fingerprint(tensor: tf.Tensor) -> tf.Tensor:
    if tensor.dtype.is_complex:
        tensor = tf.stack([tf.math.real(tensor), tf.math.imag(tensor)])
    # Whole numbers are to stay exact; halves are summed in float32 as weights are.
    kind = tf.float32 if tensor.dtype.is_floating and tensor.dtype.size <= 4 else tf.float64
    size = tensor.shape.num_elements()
    columns = max(1, min(size, _ROW))
    flat = tf.cast(tf.reshape(tensor, [-1]), kind)
    table = tf.reshape(tf.pad(flat, [[0, -size % columns]]), [-1, columns])
    sums = tf.reduce_sum(table * _weights(columns, kind.as_numpy_dtype), axis=1)
    places = 1 + _weights(table.shape[0], np.float64) / 2
    squares = tf.reduce_sum(tf.cast(tf.reduce_sum(table * table, axis=1), tf.float64))
    return tf.stack([tf.sqrt(squares), tf.reduce_sum(tf.cast(sums, tf.float64) * places)])


@functools.cache
def _weights(size: int, dtype: type) -> np.ndarray:
    """Return numbers from -1 to 1 of which no two are alike (Weyl's sequence)."""
    return (2 * (np.arange(1, size + 1) * _GOLDEN % 1) - 1).astype(dtype)


def parted(rows: np.ndarray, rounding: np.ndarray | float) -> Iterator[tuple[int, list[int]]]:
    """Yield each tensor whose fingerprint is not the same on all workers, and the workers that differ from the most.

    Args:
        rows: fingerprints of all workers, [workers, tensors, 2].
        rounding: by how much they may differ, [tensors] or one number for all.
    """
    same = _same(rows[:, None], rows[None], np.expand_dims(rounding, -1))  # [workers, workers, tensors]
    for index in np.flatnonzero(~same.all((0, 1))):
        usual = int(np.argmax(same[:, :, index].sum(1)))  # the chief, where no more workers agree with another
        yield int(index), [int(worker) for worker in np.flatnonzero(~same[usual, :, index])]


def _same(one: np.ndarray, other: np.ndarray, rounding: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):  # infinite ones, where equal, differ by NaN
        close = np.abs(one - other) <= rounding
    return np.asarray((close | (one == other) | (np.isnan(one) & np.isnan(other))).all(-1))
