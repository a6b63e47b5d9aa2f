"""The gradient of a table: that of the rows which a batch looks up, in place of all.

The rows of all replicas travel in the message of all other sums. Each replica writes its own into a block of zeros, so
that their sum has them side by side, in the same order everywhere.
"""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

_DIGITS = 2**12  # an id travels as two numbers of the gradient's dtype: floats of 24 bits hold them up to 2**36
_FOLDED = 2**16  # numbers: more rows than a few examples look up


class SparseGradient(NamedTuple):
    """Gradients of rows of a table. A row that was looked up several times has several, which add up."""

    ids: tf.Tensor  # which rows, int64 [n]
    values: tf.Tensor  # [n, width]


class SummedSparseGradient(NamedTuple):
    """The values of a `SparseGradient`, added up for each row."""

    ids: tf.Tensor  # int64 [n], ascending; a row that was looked up several times stands there as often
    number: tf.Tensor  # int64 [n], which of the sums belongs to it
    sums: tf.Tensor  # [n, width], one for each row, then zeros


def dense_of(ids: tf.Tensor, values: tf.Tensor, size: int) -> tf.Tensor:
    """Return the gradient of the first `size` rows of a table, [size, width]; rows of negative ids are left out."""
    return tf.math.unsorted_segment_sum(values, ids, size)


def folded(gradient: tf.Tensor | tf.IndexedSlices) -> tf.Tensor:
    """Return a gradient in few rows, for a comparison: row i has the sum of the rows i, i + n, i + 2 n, ...

    Rows are along the last dimension. `n` follows from their length alone, so that it is the same for a dense gradient
    and one by rows.
    """
    by_rows = isinstance(gradient, tf.IndexedSlices)
    width = (gradient.values if by_rows else gradient).shape[-1]
    number = max(1, _FOLDED // width)
    if by_rows:
        return dense_of(gradient.indices % number, tf.convert_to_tensor(gradient.values), number)
    rows = tf.reshape(gradient, [-1, width])
    padded = tf.pad(rows, [[0, -rows.shape[0] % number], [0, 0]])
    return tf.reduce_sum(tf.reshape(padded, [-1, number, width]), axis=0)


def block_of(rows: SparseGradient, replica: int, replicas: int, length: int) -> tf.Tensor:
    """Return this replica's block of a message, and zeros for the others: [replicas, length, width + 2]."""
    high, low = tf.math.floordiv(rows.ids + 1, _DIGITS), tf.math.floormod(rows.ids + 1, _DIGITS)
    numbers = tf.cast(tf.stack([high, low], axis=1), rows.values.dtype)
    block = tf.concat([rows.values, numbers], axis=1)
    spare = length - block.shape[0]
    return tf.pad(block[tf.newaxis], [[replica, replicas - 1 - replica], [0, spare], [0, 0]])


def summed(message: tf.Tensor) -> SummedSparseGradient:
    """Return what the blocks of all replicas say of each row."""
    flat = tf.reshape(message, [-1, message.shape[-1]])
    values, numbers = flat[:, :-2], tf.cast(flat[:, -2:], tf.int64)
    ids = numbers[:, 0] * _DIGITS + numbers[:, 1] - 1
    # Where a replica had fewer rows the block goes on with zeros: they count for a row that is there anyway.
    ids = tf.where(ids < 0, tf.reduce_max(ids), ids)
    order = tf.argsort(ids, stable=True)
    ids, values = tf.gather(ids, order), tf.gather(values, order)
    is_first = tf.concat([tf.ones_like(ids[:1], tf.bool), ids[1:] != ids[:-1]], 0)  # there may be no rows at all
    # A GPU adds up no integers, and leaves what is done with those of 32 bits to the host.
    number = tf.cast(tf.cumsum(tf.cast(is_first, tf.float32)), tf.int64) - 1
    return SummedSparseGradient(ids, number, dense_of(number, values, ids.shape[0]))
