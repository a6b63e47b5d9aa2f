"""What is wrapped of Keras and TensorFlow: within a replica's scope it acts as one device would, elsewhere as ever."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from mirrorkit import private
from mirrorkit._keras import keras
from mirrorkit.strategy import first_replica
from mirrorkit.train.ambient import ambient
from mirrorkit.train.replica_code.pure_step import Share
from mirrorkit.train.replica_code.scope import ReplicaScope

Y, Y_PRED = np.float32([[1.0], [3.0]]), np.float32([[0.0], [0.0]])


@contextmanager
def _running(share: Share) -> Iterator[None]:
    scope = ReplicaScope(share, [], [], {}, {})
    with scope, ambient.set(scope=scope):
        yield


def _alone() -> Share:
    return Share(0, 1, 1.0, 1.0, 1.0, lambda: tf.constant([0, 0], tf.int64))


@pytest.mark.parametrize("own", [True, False])
def test_a_loss_is_divided_by_the_replicas_elsewhere_only(strategy_of: Any, own: bool) -> None:
    private.install()
    strategy = strategy_of("mirrored", 2)

    def on_replica() -> tf.Tensor:
        if not own:
            return keras.losses.MeanSquaredError()(Y, Y_PRED)
        with _running(_alone()):
            return keras.losses.MeanSquaredError()(Y, Y_PRED)

    loss = tf.function(lambda: first_replica(strategy, strategy.run(on_replica)), autograph=False)()
    assert float(loss) == (5.0 if own else 2.5)


def test_elsewhere_optimizers_metrics_and_draws_are_as_ever() -> None:
    private.install()
    variable, mean = keras.Variable([1.0]), keras.metrics.Mean()
    optimizer = keras.optimizers.SGD(0.5)
    optimizer.apply_gradients([(tf.constant([1.0]), variable)])
    optimizer.apply([tf.constant([1.0])])
    assert variable.numpy() == [0.0]
    mean.update_state(4.0)
    mean.update_state([1.0, 1.0])
    assert float(mean.result()) == 2.0
    tf.random.set_seed(1)
    one, two = tf.random.normal((4,)), tf.random.normal((4,))
    assert not np.array_equal(one, two)
    tf.random.set_seed(1)
    assert np.array_equal(one, tf.random.normal((4,)))


DRAWS = {name: getattr(tf.random, name) for name in ("normal", "uniform", "truncated_normal", "shuffle")}


@pytest.mark.parametrize("name", [*DRAWS, "keras.random.normal"])
def test_within_it_draws_repeat_and_differ_by_place_and_use(name: str) -> None:
    draw = getattr(tf.random, name) if name in DRAWS else keras.random.normal

    def twice(*place: int) -> Any:
        with _running(_at(*place)):
            given = tf.range(100) if name == "shuffle" else (100,)
            return draw(given), draw(given)

    def _at(*place: int) -> Share:
        return Share(0, 1, 1.0, 1.0, 1.0, lambda: tf.constant(place, tf.int64))

    compiled = {place: tf.function(lambda place=place: twice(*place), autograph=False)() for place in ((0, 0), (0, 1))}
    one, two = compiled[0, 0]
    again, _ = tf.function(lambda: twice(0, 0), autograph=False)()
    assert np.array_equal(one, again)
    assert not np.array_equal(one, two)
    assert not np.array_equal(one, compiled[0, 1][0])
    for seed in (7, 8):
        keras.utils.set_random_seed(seed)
        before, (one, _) = one, tf.function(lambda: twice(0, 0), autograph=False)()
        assert not np.array_equal(one, before)
