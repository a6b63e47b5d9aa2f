"""A pure function is traced once for all replicas, and what is not pure is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from mirrorkit._keras import keras
from mirrorkit.errors import StepError
from mirrorkit.train.reduce.tracing import TraceOnce, outside_replica


def test_one_trace_for_each_shape_dtype_and_structure() -> None:
    traced: list[Any] = []

    def double(values: Any) -> Any:
        traced.append(tf.nest.map_structure(lambda value: value.shape, values))
        return tf.nest.map_structure(lambda value: 2 * value, values)

    function = TraceOnce(double)
    assert function.count == 0
    for _ in range(2):
        for count, values in enumerate(
            [tf.ones([2]), tf.ones([3]), tf.ones([2], tf.float64), {"a": tf.ones([2])}, [tf.ones([2])]], start=1
        ):
            found = function(values)
            tf.nest.map_structure(lambda a, b: np.testing.assert_array_equal(a, 2 * b), found, values)
            assert function.count >= count
    assert function.count == len(traced) == 5


def test_arrays_and_numbers_are_tensors_to_it() -> None:
    function = TraceOnce(lambda a, b: a + b)
    assert function(np.float32(1), tf.constant(2.0)) == 3.0
    assert function(tf.constant(5.0), np.float32(2)) == 7.0
    assert function.count == 1


def test_none_keeps_its_place_in_what_it_returns() -> None:
    function = TraceOnce(lambda a: {"there": a, "not": None, "some": [None, a + 1]})
    found = function(tf.constant(1.0))
    assert found["not"] is None
    assert found["some"][0] is None
    assert found["some"][1] == 2.0


def test_a_trace_for_specs_serves_tensors_of_any_size() -> None:
    function = TraceOnce(lambda a: tf.reduce_sum(a))
    trace = function.trace(tf.TensorSpec([None], tf.float32))
    assert trace(tf.ones([3])) == 3.0
    assert trace(tf.ones([0])) == 0.0
    assert function.count == 1


@pytest.mark.parametrize("replicas", [1, 4])
def test_all_replicas_share_one_trace(replicas: int, strategy_of: Any) -> None:
    function = TraceOnce(lambda value: value + 1)
    strategy = strategy_of("mirrored", replicas) if replicas > 1 else strategy_of("one_device", 1)

    def on_replica() -> tf.Tensor:
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        return function(tf.cast(replica, tf.float32))

    values = strategy.experimental_local_results(tf.function(lambda: strategy.run(on_replica), autograph=False)())
    assert [float(value) for value in values] == [replica + 1 for replica in range(replicas)]
    assert function.count == 1


def _of_a_variable() -> Any:
    variable = tf.Variable(1.0, name="hidden")
    return lambda x: x * variable


def _of_a_seed() -> Any:
    generator = keras.random.SeedGenerator(0)
    return lambda x: x * keras.random.uniform((), seed=generator)


@pytest.mark.parametrize(
    ("make", "found"),
    [
        (_of_a_variable, "hidden"),
        (_of_a_seed, "seed_generator_state"),
        (lambda: lambda x: x * tf.random.uniform([]), "the operation RandomUniform"),
        (lambda: tf.function(lambda x: x + tf.random.normal([])), "the operation RandomStandardNormal"),
    ],
    ids=["variable", "seed", "random", "random within a function"],
)
def test_what_is_not_pure_is_refused_by_name(make: Any, found: str) -> None:
    function = TraceOnce(make())
    for _ in range(2):  # and not only the first time
        with pytest.raises(StepError, match=f"not among its own: .*{found}"):
            function(tf.constant(1.0))
    assert function.count == 0


def test_stateless_random_numbers_are_pure() -> None:
    function = TraceOnce(lambda seed: tf.random.stateless_uniform([], seed))
    one, other = (function(tf.constant([1, number])) for number in (2, 3))
    assert one != other


def test_compiled_it_computes_the_same() -> None:
    plain, compiled = TraceOnce(lambda x: 3 * x + 1), TraceOnce(lambda x: 3 * x + 1, jit_compile=True)
    x = tf.range(4.0)
    np.testing.assert_array_equal(plain(x), compiled(x))


def test_outside_of_a_replica_there_is_no_graph_device_or_strategy(strategy_of: Any) -> None:
    strategy = strategy_of("mirrored", 2)
    seen: list[Any] = []

    def look() -> tuple[bool, Any, bool]:
        return tf.executing_eagerly(), tf.distribute.get_replica_context().num_replicas_in_sync, tf.inside_function()

    @tf.function(autograph=False)
    def run() -> Any:
        def on_replica() -> tf.Tensor:
            seen.append((look(), outside_replica(look)))
            return tf.constant(0)

        return strategy.run(on_replica)

    run()
    assert seen == [((False, 2, True), (True, 1, False))] * 2


def test_outside_of_a_replica_a_tape_goes_on() -> None:
    x = tf.constant(3.0)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = x * x
        assert outside_replica(lambda: int(tf.constant(5) + 1)) == 6
        y = y * x
    assert tape.gradient(y, x) == 27.0


def test_errors_come_through() -> None:
    with pytest.raises(ZeroDivisionError):
        outside_replica(lambda: 1 // 0)
