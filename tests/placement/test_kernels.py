"""What TensorFlow's registrations say about GPUs; these fail when its private list moves or changes."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf
from gpu_placement import kernels


def _op(make: Any) -> tf.Operation:
    with tf.Graph().as_default():
        return make().op


@pytest.mark.parametrize("dtype", [tf.float32, tf.int64, tf.bool])
def test_a_gather_of_these_has_a_kernel(dtype: tf.DType) -> None:
    op = _op(lambda: tf.gather(tf.zeros([4, 2], dtype), [0]))
    assert kernels.on_gpu(op) == kernels.Kernel([False, False, True], [False])  # the axis lies on the host


@pytest.mark.parametrize("dtype", [tf.uint8, tf.int16, tf.string])
def test_a_gather_of_these_has_none(dtype: tf.DType) -> None:
    assert (
        kernels.on_gpu(
            _op(lambda: tf.gather(tf.constant([["a"]]) if dtype == tf.string else tf.zeros([4, 2], dtype), [0]))
        )
        is None
    )


def test_int32_is_worked_with_on_the_host_and_int64_on_the_device() -> None:
    assert kernels.on_gpu(_op(lambda: tf.constant(1) + 1)) == kernels.Kernel([True, True], [True])
    assert kernels.on_gpu(_op(lambda: tf.constant(1, tf.int64) + 1)) == kernels.Kernel([False, False], [False])


def test_arguments_that_are_lists_are_counted_one_by_one() -> None:
    op = _op(lambda: tf.concat([tf.zeros([2]), tf.zeros([3])], 0))
    assert kernels.on_gpu(op) == kernels.Kernel([False, False, True], [False])
