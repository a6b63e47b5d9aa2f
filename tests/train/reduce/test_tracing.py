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
