"""The checks of the first batch only check: where none is made, all trains to the same bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from training_helpers import values_of

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.train.loop import passes

L = keras.layers


def net() -> Any:
    """Draws, statistics, a regularizer, and state of its own in a generator of random numbers."""
    kernel = keras.regularizers.L2(0.01)
    return keras.Sequential(
        [keras.Input((4,)), L.Dense(8, kernel_regularizer=kernel), L.BatchNormalization(), L.Dropout(0.3), L.Dense(1)]
    )


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {"metrics": ["mae"]},
    "accumulate": {"accumulate": 2, "ema": 0.9},
    "clip": {"clip_norm": 0.1, "loss_scale": "dynamic"},
    "sharded": {"shard_optimizer": True},
}


@pytest.mark.parametrize("options", OPTIONS)
def test_without_the_checks_the_bits_are_the_same(
    options: str, strategy_of: Callable[..., Any], numbers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked = []

    def trained() -> list[np.ndarray]:
        strategy = strategy_of("mirrored", 2)
        keras.utils.set_random_seed(0)
        with strategy.scope():
            model, optimizer = net(), keras.optimizers.Adam(0.01)
        loop = mk.train.Loop(strategy, mk.train.Step(model, optimizer, loss="mse", **OPTIONS[options]))
        data = mk.data.batches(mk.data.arrays(*numbers), global_batch_size=12, shuffle=True)
        history = loop.fit(data, epochs=2, validation_data=data, verbose=0).history
        predicted = loop.predict(data)
        return [*values_of(loop), *map(np.asarray, history.values()), predicted]

    def nothing(step: Any, what: str = "train") -> None:
        checked.append(what)

    expected = trained()
    monkeypatch.setattr(passes, "first_batch_check", nothing)
    found = trained()
    assert {*checked} == {"train", "test", "predict"}
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)
