"""What layers, metrics and losses count in Python attributes is as before the checks."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from first_batch_helpers import TWO, X, check
from training_helpers import sequential

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.train.keras_model import attributes

L = keras.layers


class _Counts(L.Layer):  # type: ignore[name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.calls, self.seen, self.named = 0, [], {"last": 0}
        self.nested, self.rows = {"a": [0]}, [[0]]

    def call(self, x: Any) -> Any:
        self.calls += 1
        self.seen.append(x)
        self.named["last"] = self.calls
        self.nested["a"].append(1)
        self.rows[0][0] += 1
        self.rows.append([x])
        return x


class _Loss(keras.losses.Loss):  # type: ignore[name-defined, misc]
    calls = 0

    def __init__(self) -> None:
        super().__init__()
        self.own = 0

    def call(self, y: Any, y_pred: Any) -> Any:
        _Loss.calls += 1
        self.own += 1
        return keras.ops.mean(keras.ops.square(y - y_pred), -1)


def test_they_are_given_back(make_loop: Any) -> None:
    loss = _Loss()
    loop = make_loop(TWO, lambda: sequential((4,), _Counts(), L.Dense(1)), loss=loss)
    layer = loop.step.model.layers[0]
    loop.step.for_loop(loop.strategy).prepare((X, X[:, :1]))
    layer.calls, loss.own, calls = 5, 7, _Loss.calls
    layer.seen[:], layer.named["last"] = [1.0], 3
    layer.nested["a"][:], layer.rows[:] = [0], [[4]]
    inner, first = layer.nested["a"], layer.rows[0]
    check(loop, X, X[:, :1])
    assert (layer.calls, layer.seen, layer.named, loss.own) == (5, [1.0], {"last": 3}, 7)
    assert (layer.nested, layer.rows) == ({"a": [0]}, [[4]])
    assert layer.nested["a"] is inner
    assert layer.rows[0] is first
    assert _Loss.calls > calls
    assert layer.built


def test_a_loop_of_the_users_own_may_begin_with_a_trace(strategy_of: Any) -> None:
    """Nothing is made in it to learn which attributes Keras's classes have."""
    attributes._of_keras.cache_clear()
    strategy = strategy_of(*TWO)
    with strategy.scope():
        step = mk.train.Step(sequential((4,), L.Dense(1)), keras.optimizers.SGD(0.01), loss="mse")
    step.build(strategy)

    @tf.function
    def train(batch: Any) -> Any:
        return step.update(strategy, strategy.run(step.compute, args=(batch,)))

    specs = [tf.TensorSpec(part.shape, part.dtype) for part in (X, X[:, :1])]
    assert train.get_concrete_function(tuple(specs)).structured_outputs.keys() == {"loss"}
