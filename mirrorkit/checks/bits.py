"""The bits of tensors as integers, and checksums of them."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from mirrorkit.errors import StepError

_WORDS = {1: tf.int8, 2: tf.int16, 4: tf.int32, 8: tf.int32, 16: tf.int32}  # by the size of an element in bytes
_KEY = 271  # of the random numbers


def to_words(value: tf.Tensor) -> tf.Tensor:
    """Return the bits of a tensor of any numeric dtype as int64 [n], each holding a word of at most 32 bits."""
    if value.dtype == tf.bool:
        value = tf.cast(value, tf.int8)
    if value.dtype.size not in _WORDS:
        raise StepError(f"Only numbers can be compared between replicas, found a variable of {value.dtype.name}.")
    return tf.cast(tf.reshape(tf.bitcast(value, _WORDS[value.dtype.size]), [-1]), tf.int64)


def checksums(values: Sequence[tf.Tensor]) -> tf.Tensor:
    """Return a checksum of each tensor, int64 [len(values)], that depends on all bits and on their order.

    It is the sum, modulo 2**64, of each word times an odd random 64-bit number that belongs to its position. A change
    of a single word always changes the checksum, since odd factors are invertible; any other change is missed with a
    probability of at most 2**-32.
    After Dietzfelbinger 1996, "Universal hashing and k-wise independent random variables via integer arithmetic
    without primes".
    """
    return tf.stack([_checksum(to_words(value)) for value in values])


def _checksum(words: tf.Tensor) -> tf.Tensor:
    # A fixed algorithm: the default one depends on the kind of device. `tf.random.stateless_uniform` does the same by
    # so many operations that it takes four times as long to trace.
    alg = tf.random.Algorithm.PHILOX.value
    places = tf.raw_ops.StatelessRandomUniformFullIntV2(
        shape=tf.shape(words), key=[_KEY], counter=[0, 0], alg=alg, dtype=tf.int64
    )
    return tf.reduce_sum(words * tf.bitwise.bitwise_or(places, tf.constant(1, tf.int64)))
