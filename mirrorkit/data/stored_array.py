"""How the rows of a set are kept on the devices, so that a GPU can gather them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

HOST = "/device:CPU:0"  # of the worker that runs the code

# Dtypes for which `tf.gather` has GPU kernels. int32 has one too, but TensorFlow keeps int32 in host memory on GPUs.
GATHERED = frozenset({tf.bool, tf.bfloat16, tf.float16, tf.float32, tf.float64, tf.complex64, tf.complex128, tf.int64})
_WORD = np.dtype(np.int64)


@dataclass(frozen=True)
class StoredArray:
    """How one array of the set is kept: as it is, as int64 words on the device, or on the host.

    An operation without a GPU kernel runs on the host, and all its inputs are copied there: the whole set, in every
    step. So rows that a GPU cannot gather are kept as words, [N, words], and get their dtype and shape back after the
    gather.
    """

    dtype: tf.DType
    shape: tuple[int, ...]  # of one row

    @classmethod
    def of(cls, array: np.ndarray) -> StoredArray:
        """How to keep this array."""
        return cls(tf.as_dtype(array.dtype), array.shape[1:])

    @property
    def on_host(self) -> bool:
        """Whether they stay on the host, where TensorFlow keeps int32 anyway; then only a batch's rows are copied."""
        return self.dtype == tf.int32

    def pack(self, array: np.ndarray) -> np.ndarray:
        """Convert this array, or some of its rows, to the form that is kept."""
        if self.on_host or self.dtype in GATHERED:
            return array
        count = len(array)
        octets = np.ascontiguousarray(array).reshape(count, math.prod(self.shape)).view(np.uint8)
        odd = -octets.shape[1] % _WORD.itemsize
        if odd:
            octets = np.pad(octets, [(0, 0), (0, odd)])
        return octets.view(_WORD)

    def take(self, kept: tf.Tensor, places: tf.Tensor) -> tf.Tensor:
        """Gather the rows at these places: int64 [B] -> [B, ...]."""
        if self.on_host:
            with tf.device(HOST):
                return tf.gather(kept, places)
        rows = tf.gather(kept, places)
        if self.dtype in GATHERED:
            return rows
        values = tf.bitcast(rows, self.dtype)  # [B, words], or [B, words, values in a word]
        values = tf.reshape(values, [-1, kept.shape[1] * _WORD.itemsize // self.dtype.size])
        return tf.reshape(values[:, : math.prod(self.shape)], [-1, *self.shape])
