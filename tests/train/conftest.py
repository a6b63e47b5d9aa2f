"""What the tests of training share: small nets, small data, and a look at every replica's copy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import mirrorkit as mk
from mirrorkit._keras import keras


@pytest.fixture
def make_loop(strategy_of: Callable[..., Any]) -> Callable[..., mk.train.Loop]:
    """`make_loop((kind, replicas), net, optimizer=..., **Step's options)`; the same seed gives the same weights.

    `net` and `optimizer` are called in the strategy's scope.
    """

    def make(
        where: tuple[str, int],
        net: Callable[[], Any],
        optimizer: Callable[[], Any] = lambda: keras.optimizers.SGD(0.1),
        *,
        loss: Any = "mse",
        steps_per_call: int | str = 3,
        **options: Any,
    ) -> mk.train.Loop:
        strategy = strategy_of(*where)
        keras.utils.set_random_seed(0)
        with strategy.scope():
            model, made = net(), optimizer()
        step = mk.train.Step(model, made, loss=loss, **options)
        return mk.train.Loop(strategy, step, steps_per_call=steps_per_call)

    return make


@pytest.fixture
def copies() -> Callable[..., list[list[np.ndarray]]]:
    """`copies(loop)`: for each variable of the loop's step the values on all replicas."""

    def read(loop: Any, variables: Sequence[Any] | None = None) -> list[list[np.ndarray]]:
        variables = loop.step.variables if variables is None else variables
        return [
            [copy.numpy() for copy in loop.strategy.experimental_local_results(getattr(v, "value", v))]
            for v in variables
        ]

    return read


@pytest.fixture
def assert_replicas_equal(copies: Callable[..., Any]) -> Callable[[Any], None]:
    """`assert_replicas_equal(loop)`: every variable has the same bits on all replicas."""

    def check(loop: Any) -> None:
        for variable, values in zip(loop.step.variables, copies(loop), strict=True):
            for value in values[1:]:
                np.testing.assert_array_equal(values[0], value, err_msg=getattr(variable, "path", ""))

    return check


@pytest.fixture(scope="session")
def numbers() -> tuple[np.ndarray, np.ndarray]:
    """Float inputs [60, 4] and targets [60, 1] that depend on them."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 4)).astype("float32")
    y = x @ np.array([[1.0], [-2.0], [0.5], [3.0]], "float32") + 0.1 * rng.normal(size=(60, 1))
    return x, y.astype("float32")
