"""`Step.from_compiled`: every loss and metric that Keras's `compile` takes, registered with Keras or not."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from training_helpers import assert_same_logs, fit_compiled, plain_dataset, sequential

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.errors import StepError

L = keras.layers
pytestmark = [
    pytest.mark.filterwarnings("ignore:A global batch of"),
    pytest.mark.filterwarnings("ignore:`shuffle=True` was passed"),
]


def cubic(y: Any, y_pred: Any) -> Any:
    return keras.ops.mean(keras.ops.abs(y - y_pred) ** 1.5, axis=-1)


class Cubic(keras.losses.Loss):  # type: ignore[name-defined]
    """A loss with an argument, which is not registered with Keras."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def call(self, y: Any, y_pred: Any) -> Any:
        return self.factor * cubic(y, y_pred)


class Largest(keras.metrics.Mean):  # type: ignore[name-defined]
    """A metric that is not registered, and whose config says nothing of its argument."""

    def __init__(self, above: float, name: str = "largest") -> None:
        super().__init__(name)
        self.above = above

    def update_state(self, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        return super().update_state(keras.ops.cast(keras.ops.abs(y - y_pred) > self.above, "float32"), sample_weight)


def test_trains_as_keras_does(strategy_of: Any, numbers: Any) -> None:
    def compiled() -> Any:
        model = sequential((4,), L.Dense(3, activation="tanh"), L.Dense(1))
        metrics = {"metrics": [cubic, Largest(0.5)], "weighted_metrics": [Largest(1.0, "weighted"), cubic]}
        model.compile(keras.optimizers.SGD(0.05), Cubic(0.5), **metrics)
        return model

    data = plain_dataset(*numbers, np.linspace(0, 2, 60).astype("float32"), batch=20)
    loop, twin = fit_compiled(strategy_of("one_device", 1), compiled, data)
    logs = loop.evaluate(data)
    for one in (twin, loop.step.model):  # Keras can evaluate it too, with the same metrics
        assert_same_logs(logs, one.evaluate(data, return_dict=True, verbose=0), rtol=2e-5)


@pytest.mark.parametrize(
    ("when", "policy"),
    [
        pytest.param("before fit", "float32", marks=pytest.mark.slow),
        ("before evaluate", "float32"),
        ("between fits", "mixed_float16"),  # `compile` wraps the optimizer
    ],
)
def test_a_second_compile_is_refused(when: str, policy: str, strategy_of: Any, request: Any) -> None:
    request.addfinalizer(functools.partial(keras.config.set_dtype_policy, keras.config.dtype_policy()))
    keras.config.set_dtype_policy(policy)
    strategy = strategy_of("mirrored", 2)
    with strategy.scope():
        model = sequential((4,), L.Dense(2), L.Dense(1, dtype="float32"))
        model.compile("sgd", "mse")
        loop = mk.train.Loop(strategy, mk.train.Step.from_compiled(model))
        data = plain_dataset(np.ones([8, 4], np.float32), np.ones([8, 1], np.float32), batch=4)
        if when != "before fit":
            loop.fit(data, verbose=0)
        model.compile("sgd", "mae")
        with pytest.raises(StepError, match="compile was called after"):
            loop.evaluate(data) if when == "before evaluate" else loop.fit(data, epochs=3, verbose=0)
        again = mk.train.Loop(strategy, mk.train.Step.from_compiled(model))
    assert again.fit(data, verbose=0).history["loss"]
