"""find_non_finite: the first number that is not finite is found where it was made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.errors import StepError

L = keras.layers
X = np.arange(1.0, 33.0, dtype="float32").reshape(8, 4)
Y = np.ones((8, 1), "float32")


def log(name: str = "log") -> Any:
    return L.Lambda(tf.math.log, name=name)


def sequential(*layers: Any) -> Any:
    return keras.Sequential([keras.Input((4,)), *layers])


class Own(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.scale, self.parts, self.head = L.Rescaling(1.0, name="scale"), [log()], L.Dense(1, name="head")

    def build(self, shape: Any) -> None:
        self.head.build(shape)

    def call(self, x: Any, training: bool = False) -> Any:
        return self.head(self.parts[0](self.scale(x)))


def own() -> Any:
    model = Own()
    model.build((None, 4))
    return model


def functional() -> Any:
    x = keras.Input((4,))
    hidden = L.Dense(4, kernel_initializer="identity", name="first")(x)
    return keras.Model(x, L.Dense(1)(sequential(log(), L.ReLU(name="after"))(hidden)))


NETS = {"functional": functional, "subclass": own}


def step_for(strategy: Any, net: Callable[[], Any], loss: Any = "mse") -> mk.train.Step:
    with strategy.scope():
        model, optimizer = net(), keras.optimizers.Adam(0.01)
    step = mk.train.Step(model, optimizer, loss=loss)
    step.build(strategy)
    return step


@pytest.mark.parametrize("net", NETS.values(), ids=NETS)
def test_the_first_layer_whose_output_is_not_finite(net: Any, strategy_of: Any) -> None:
    bad = X.copy()
    bad[5, :2] = [-3, 0]  # the logarithm of the one is NaN, of the other -inf
    for of in (step_for(strategy_of("mirrored", 4), net), net()):
        found = mk.checks.find_non_finite(of, (bad, Y))
        assert found is not None
        rows = bad[4:6] if isinstance(of, mk.train.Step) else bad
        finite = np.log(rows[rows > 0])
        assert (found.what, found.where) == ("output", "of layer 'log' (Lambda)")
        assert (found.nan, found.infinite, found.size) == (1, 1, rows.size)
        assert found.range == pytest.approx((finite.min(), finite.max()))
        assert found.input_range == pytest.approx((-3, rows.max()))
        assert found.shard == (2 if isinstance(of, mk.train.Step) else 0)
        assert "output of layer 'log' (Lambda): 1 NaN and 1 infinite of" in str(found)


def test_all_is_well_and_nothing_is_changed(strategy_of: Any) -> None:
    step = step_for(strategy_of("mirrored", 2), lambda: sequential(L.BatchNormalization(), L.Dropout(0.5), L.Dense(1)))
    before = [v.numpy() for v in step.variables]
    call = keras.Operation.__call__
    assert mk.checks.find_non_finite(step, (X, Y)) is None
    assert mk.checks.find_non_finite(step, (X[:1], Y[:1])) is None  # one replica has no example
    assert mk.checks.find_non_finite(step.model, X) is None
    assert keras.Operation.__call__ is call
    for old, new in zip(before, step.variables, strict=True):
        np.testing.assert_array_equal(old, new.numpy())


def test_the_metrics_of_a_compiled_model_stay() -> None:
    """Those that Keras adds up of each output's loss, too."""
    inputs = keras.Input((X.shape[1],))
    model = keras.Model(inputs, {name: L.Dense(1, name=name)(inputs) for name in ("a", "b")})
    model.compile("sgd", {"a": "mse", "b": "mse"})
    targets = {"a": Y, "b": Y}
    model.evaluate(X, targets, verbose=0)
    before = [variable.numpy() for variable in model.metrics_variables]
    assert any(map(np.any, before))
    assert mk.checks.find_non_finite(model, (X, targets)) is None
    assert [variable.numpy() for variable in model.metrics_variables] == before


def test_what_came_before_the_first_layer(strategy_of: Any) -> None:
    step = step_for(strategy_of("mirrored", 2), lambda: sequential(L.Dense(1, name="line")))
    bad_x, bad_y, weights = X.copy(), Y.copy(), np.ones(8, "float32")
    bad_x[6, 1], bad_y[7], weights[0] = np.inf, np.nan, np.nan
    found = mk.checks.find_non_finite(step, (bad_x, bad_y))
    assert (found.what, found.where, found.shard) == ("input", "of the batch", 1)
    assert (found.infinite, found.range) == (1, (17, 32))
    found = mk.checks.find_non_finite(step, (X, bad_y))
    assert (found.what, found.nan, found.size) == ("target", 1, 4)
    found = mk.checks.find_non_finite(step, (X, Y, weights))
    assert (found.what, found.shard) == ("sample weight", 0)
    for variable in (step.optimizer.variables[-1], step.model.layers[0].kernel):  # slots, and weights before them
        variable.assign(np.full(variable.shape, np.nan))
        found = mk.checks.find_non_finite(step, (bad_x, bad_y))
        assert (found.what, found.where, found.shard) == ("variable", repr(variable.path), None)


def test_a_loss_that_is_not_finite(strategy_of: Any) -> None:
    relative = lambda y, p: tf.reduce_mean(tf.abs(y - p) / tf.abs(y), -1)  # noqa: E731
    step = step_for(strategy_of("mirrored", 2), lambda: sequential(L.Dense(1)), loss=relative)
    found = mk.checks.find_non_finite(step, (X, np.where(X[:, :1] > 28, 0, Y)))
    assert (found.what, found.infinite, found.shard) == ("loss", 1, 1)


class Root(L.Layer):
    """Its weight is 0, where the slope of the square root is infinite; what it passes back is finite."""

    def build(self, shape: Any) -> None:
        self.weight = self.add_weight(shape=(), initializer="zeros", name="inside")

    def call(self, x: Any) -> Any:
        return x + keras.ops.sqrt(self.weight)


def test_a_gradient_that_is_not_finite_though_the_loss_is(strategy_of: Any) -> None:
    """The square root of exactly 0: its value is finite, its slope is not."""
    root = lambda: L.Lambda(tf.sqrt, name="root")  # noqa: E731
    net = lambda: sequential(  # noqa: E731
        sequential(L.Dense(4), L.ReLU(max_value=0.0, name="zero")), root(), L.Dense(2, name="last"), L.Dense(1)
    )
    found = mk.checks.find_non_finite(step_for(strategy_of("mirrored", 2), net), (X, Y))
    assert found.what == "gradient"
    assert found.where == "that layer 'root' (Lambda) passes back to layer 'zero' (ReLU)"
    net = lambda: sequential(L.Dense(3), Root(name="own"), L.Dense(1))  # noqa: E731
    found = mk.checks.find_non_finite(step_for(strategy_of("mirrored", 2), net), (X, Y))
    assert (found.what, found.infinite, found.size) == ("gradient", 1, 1)
    assert found.where.endswith("own/inside', a weight of layer 'own' (Root)")


def test_a_compiled_model_is_looked_through_back_and_forth_an_uncompiled_one_forward() -> None:
    model = sequential(L.Dense(3), Root(name="own"), L.Dense(1))
    assert mk.checks.find_non_finite(model, (X, Y)) is None
    model.compile("sgd", "mse")
    assert mk.checks.find_non_finite(model, (X, Y)).what == "gradient"
    assert mk.checks.find_non_finite(model, X) is None


def test_what_is_no_step() -> None:
    with pytest.raises(StepError, match="found str"):
        mk.checks.find_non_finite("model", (X, Y))
