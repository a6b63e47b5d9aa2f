"""What TensorFlow's registrations say about GPUs; these fail when its private list moves or changes."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf
from gpu_placement import kernels


def _op(make: Any) -> tf.Operation:
    with tf.Graph().as_default():
        return make().op


@pytest.mark.parametrize(("dtype", "has_one"), [(tf.float32, True), (tf.int64, True), (tf.uint8, False)])
def test_a_gather_has_a_kernel_for_some_types(dtype: tf.DType, has_one: bool) -> None:
    op = _op(lambda: tf.gather(tf.zeros([4, 2], dtype), [0]))
    on_gpu = kernels.Kernel([False, False, True], [False])  # the axis lies on the host
    assert kernels.on_gpu(op) == (on_gpu if has_one else None)


def test_int32_is_worked_with_on_the_host_and_int64_on_the_device() -> None:
    assert kernels.on_gpu(_op(lambda: tf.constant(1) + 1)) == kernels.Kernel([True, True], [True])
    assert kernels.on_gpu(_op(lambda: tf.constant(1, tf.int64) + 1)) == kernels.Kernel([False, False], [False])


def test_arguments_that_are_lists_are_counted_one_by_one() -> None:
    op = _op(lambda: tf.concat([tf.zeros([2]), tf.zeros([3])], 0))
    assert kernels.on_gpu(op) == kernels.Kernel([False, False, True], [False])
