"""What refuses only refuses: without the checks of the first batch, and of all else, it trains to the same bits."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from training_helpers import values_of

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.train import requirements
from mirrorkit.train.calls import compiled
from mirrorkit.train.first_batch import later
from mirrorkit.train.input import epoch, resident
from mirrorkit.train.loop import loop as loop_module, passes
from mirrorkit.train.step import global_batch, supervised

L = keras.layers


def net() -> Any:
    """Draws, statistics, a regularizer, and state of its own in a generator of random numbers."""
    kernel = keras.regularizers.L2(0.01)
    return keras.Sequential(
        [keras.Input((4,)), L.Dense(8, kernel_regularizer=kernel), L.BatchNormalization(), L.Dropout(0.3), L.Dense(1)]
    )


OPTIONS: dict[str, dict[str, Any]] = {
    "all": {"accumulate": 2, "ema": 0.9, "clip_norm": 0.1, "loss_scale": "dynamic"},
    "sharded": {"shard_optimizer": True, "metrics": ["mae"]},
}


def _without_requirements(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Replace all that `train/requirements` has to refuse with; returns the names of what was called, as they come."""
    asked: set[str] = set()
    rooms = {module for name, module in sys.modules.items() if name.startswith("mirrorkit.train")}
    for module in rooms:
        for name, function in list(vars(module).items()):
            here = getattr(function, "__module__", "").startswith(requirements.__name__)
            if here and inspect.isfunction(function) and function.__annotations__["return"] == "None":
                monkeypatch.setattr(module, name, lambda *given, name=name, **options: asked.add(name))
    for module in (compiled, epoch, global_batch, resident):
        monkeypatch.setattr(module, "with_same_rows", lambda batch, number=-1: batch)
    monkeypatch.setattr(supervised, "settings_of", lambda model, optimizer, options: {})
    return asked


@pytest.mark.slow
@pytest.mark.parametrize("options", ["all", pytest.param("sharded", marks=pytest.mark.slow)])
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
        history = loop.fit(data, validation_data=data, verbose=0).history
        predicted = loop.predict(data)
        return [*values_of(loop), *map(np.asarray, history.values()), predicted]

    def nothing(step: Any, what: str = "train", **options: bool) -> None:
        checked.append(what)

    expected = trained()
    for module in (loop_module, passes, later):
        monkeypatch.setattr(module, "first_batch_check", nothing)
    asked = _without_requirements(monkeypatch)
    found = trained()
    assert {*checked} == {"train", "test", "predict"}
    assert asked >= {"check_model", "check_optimizer", "check_tensors", "require_same_rows"}
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)
