"""An optimizer sees the weights' names as it does in Keras's `fit`: by TensorFlow's, which are paths."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mirrorkit as mk
from mirrorkit._keras import keras

_X = np.random.default_rng(0).normal(size=(24, 3)).astype("float32")
_Y = _X[:, :1] ** 2


class SlowEncoder(keras.optimizers.SGD):  # type: ignore[misc, name-defined]
    """Layers whose name says so learn at a tenth of the rate."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        factor = 0.1 if "encoder/" in variable.name else 1.0
        super().update_step(gradient * factor, variable, learning_rate)


def _decaying() -> Any:
    optimizer = keras.optimizers.AdamW(0.01, weight_decay=0.5)
    optimizer.exclude_from_weight_decay(var_names=["encoder", "bias"])
    return optimizer


def _model(optimizer: Callable[[], Any]) -> Any:
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(4, name="encoder"), *(keras.layers.Dense(4) for _ in range(3)), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((3,)), *layers])
    model.compile(optimizer(), "mse")
    return model


@pytest.mark.parametrize(
    ("optimizer", "options"),
    [
        (_decaying, {}),
        pytest.param(_decaying, {"shard_optimizer": True}, marks=pytest.mark.slow),
        (lambda: SlowEncoder(0.1), {}),
    ],
    ids=["weight decay", "weight decay, sharded", "update_step"],
)
def test_names_are_paths(strategy_of: Any, optimizer: Callable[[], Any], options: dict[str, Any]) -> None:
    expected = _model(optimizer)
    expected.fit(_X, _Y, batch_size=12, epochs=2, shuffle=False, verbose=0)
    strategy = strategy_of("mirrored", 2)
    with strategy.scope():
        model = _model(optimizer)
    data = mk.data.batches(mk.data.arrays(_X, _Y), global_batch_size=12, shuffle=False)
    mk.train.Loop(strategy, mk.train.Step.from_compiled(model, **options)).fit(data, epochs=2, verbose=0)
    for want, found in zip(expected.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-6)
    assert {weight.name for weight in model.weights} == {"kernel", "bias"}  # as before
