"""The rules by which operations and tensors find their place, each on a function of a few lines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf
from gpu_placement.operations import walk
from gpu_placement.tally import HOST_PLACE, Walk

GPU0, GPU1, CPU = "/device:GPU:0", "/device:GPU:1", "/device:CPU:0"


def _walk(function: Callable[..., Any], *specs: tf.TensorSpec, **options: Any) -> Walk:
    traced = tf.function(function, autograph=False).get_concrete_function(*specs)
    return walk(traced, **{"has_loop": False, **options})


def _copies(found: Walk) -> list[tuple[str, str, int]]:
    return [(copy.source, copy.target, copy.size) for copy in found.step.copies.values()]


FLOATS = tf.TensorSpec([8], tf.float32)


def test_a_node_without_a_device_takes_that_of_the_function_it_is_in() -> None:
    inner = tf.function(lambda x: tf.exp(x) * 2.0)

    def outer(x: tf.Tensor) -> tf.Tensor:
        with tf.device(GPU1):
            return inner(x)

    found = _walk(outer, FLOATS, places=["GPU:1"])
    assert found.step.kernels == {("GPU:1", "Exp"): 1, ("GPU:1", "Mul"): 1}
    assert _copies(found) == []


def test_a_tensor_travels_once_to_each_device() -> None:
    def function(x: tf.Tensor) -> list[tf.Tensor]:
        with tf.device(GPU1):
            return [tf.exp(x), tf.sin(x)]

    assert _copies(_walk(function, FLOATS)) == [("GPU:0", "GPU:1", 32)]
    assert _copies(_walk(function, FLOATS, places=HOST_PLACE)) == [(HOST_PLACE, "GPU:1", 32)]


def test_an_operation_without_a_kernel_runs_on_the_host_and_its_inputs_travel() -> None:
    def function(pixels: tf.Tensor) -> tf.Tensor:
        with tf.device(GPU0):
            return tf.gather(pixels, [0])

    found = _walk(function, tf.TensorSpec([100, 8], tf.uint8))
    (finding,) = found.step.without_kernel
    assert finding.op == "GatherV2"
    assert "uint8" in finding.what
    assert finding.line.startswith("test_operations.py:")
    assert ("GPU:0", HOST_PLACE, 800) in _copies(found)


@pytest.mark.parametrize(("dtype", "copied"), [(tf.int32, []), (tf.int64, [("GPU:0", HOST_PLACE, 1)])])
def test_a_loop_that_counts_in_int64_asks_the_device_in_every_round(dtype: tf.DType, copied: list[Any]) -> None:
    def loop(end: tf.Tensor) -> tf.Tensor:
        return tf.while_loop(lambda i: i < end, lambda i: [i + 1], [tf.constant(0, dtype)])[0]

    assert _copies(_walk(loop, tf.TensorSpec([], dtype), has_loop=True)) == copied


def test_what_runs_in_the_loop_is_counted_apart_from_what_runs_around_it() -> None:
    def loop(x: tf.Tensor) -> tf.Tensor:
        x = tf.exp(x)
        return tf.while_loop(lambda i, x: i < 9, lambda i, x: [i + 1, tf.sin(x) * x], [0, x])[1]

    found = _walk(loop, FLOATS, has_loop=True)
    assert found.call.kernels == {("GPU:0", "Exp"): 1}
    assert found.step.kernels == {("GPU:0", "Sin"): 1, ("GPU:0", "Mul"): 1}
    assert _copies(found) == []


def test_a_branch_asks_the_host_and_the_larger_one_counts() -> None:
    def function(x: tf.Tensor) -> tf.Tensor:
        return tf.cond(x[0] > 0, lambda: tf.exp(tf.sin(x)), lambda: tf.cos(x))

    found = _walk(function, FLOATS)
    assert _copies(found) == [("GPU:0", HOST_PLACE, 1)]
    assert found.step.kernels_on("GPU:0") == 4  # slice, comparison, and two of the branch


def test_shapes_that_are_known_cost_nothing_and_others_are_taken_for_what_is_said() -> None:
    def function(x: tf.Tensor) -> tf.Tensor:
        return tf.zeros([tf.shape(x)[0] + 1]) if x.shape[0] else tf.exp(x)

    assert _walk(function, FLOATS).step.kernels_on("GPU:0") == 0
    found = _walk(function, tf.TensorSpec([None], tf.float32), places=HOST_PLACE, unknown_size=5)
    assert _copies(found) == [(HOST_PLACE, "GPU:0", 20)]


def test_a_variable_is_read_where_it_lies() -> None:
    variable = tf.Variable(tf.zeros([8]))

    def function() -> tf.Tensor:
        with tf.device(CPU):
            return tf.exp(tf.identity(variable))

    found = _walk(function, resources={id(variable.handle): "GPU:1"})
    assert _copies(found) == [("GPU:1", HOST_PLACE, 32)]


def test_python_and_xla_are_told() -> None:
    compiled = tf.function(lambda x: tf.exp(tf.sin(x)), jit_compile=True)
    found = _walk(lambda x: compiled(tf.py_function(lambda x: x, [x], tf.float32)), FLOATS)
    assert [finding.op for finding in found.step.blocking] == ["EagerPyFunc"]
    assert found.step.kernels["GPU:0", "XLA program"] == 1
