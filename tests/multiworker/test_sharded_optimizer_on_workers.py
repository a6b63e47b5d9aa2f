"""Sharded optimizer state on two workers: the bits of two workers without, and checkpoints that hold whole slots."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import mirrorkit as mk
from mirrorkit.train.step.sharded_slots import whole_values

pytestmark = pytest.mark.slow


def make_loop(strategy: tf.distribute.Strategy, *, sharded: bool) -> mk.train.Loop:
    """A new model and optimizer, of two kinds of weights: with decay and without."""
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(0)
    with strategy.scope():
        layers = [keras.layers.Dense(7), keras.layers.BatchNormalization(), keras.layers.Dropout(0.3)]
        model = keras.Sequential([keras.Input((8,)), *layers, keras.layers.Dense(3), keras.layers.Dense(2)])
        optimizer = keras.optimizers.AdamW(0.01, weight_decay=0.1)
        optimizer.exclude_from_weight_decay(var_names=["bias"])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    step = mk.train.Step(model, optimizer, loss=loss, clip_value=0.01, ema=0.9, shard_optimizer=sharded)
    return mk.train.Loop(strategy, step, steps_per_call=3)


def data() -> mk.data.Batches:
    """Of which the last batch has one row: the second replica has none."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(49, 8)).astype("float32")
    return mk.data.batches(mk.data.arrays(x, (x[:, 0] > 0).astype("int64")), global_batch_size=12, shuffle=True)


def fit(loop: mk.train.Loop, folder: Path, epochs: int) -> list[np.ndarray]:
    """Train with checkpoints; returns what they hold."""
    saver = keras.callbacks.ModelCheckpoint(folder / "model.keras")
    checks = [mk.checks.InSync(every=4), mk.checks.NanWatch(every=4)]
    callbacks = [mk.train.Checkpoints(folder / "checkpoints", every=2), saver, *checks]
    loop.fit(data(), epochs=epochs, verbose=0, callbacks=callbacks)
    return whole_values(loop.step.saved_variables)


def asked(strategy: tf.distribute.Strategy, folder: Path) -> dict[str, Any]:
    """Trainings without and with sharded optimizer state, one of them in two parts."""
    expected = fit(make_loop(strategy, sharded=False), folder / "plain", 4)
    first = make_loop(strategy, sharded=True)
    first.warm_up(data())
    half_way = fit(first, folder / "sharded", 2)
    if mk.strategy.is_chief(strategy):
        for copy in ("copy", "kept"):
            shutil.copytree(folder / "sharded", folder / copy)
    mk.strategy.wait_for_all(strategy, "copied")

    def same(found: list[np.ndarray]) -> list[bool]:
        return [np.array_equal(a, b) for a, b in zip(found, expected, strict=True)]

    found = {
        "resumed": same(fit(make_loop(strategy, sharded=True), folder / "sharded", 4)),
        "resumed without": same(fit(make_loop(strategy, sharded=False), folder / "copy", 4)),
        "half way": half_way,
        "changed since": not all(same(half_way)),
        "sizes": [list(variable.shape) for variable in first.step.optimizer.variables],
    }
    mk.train.export(first, folder / "exported.keras")
    return found


def test_two_workers(found: Any, folder: Path, strategy_of: Any) -> None:
    for worker in found:
        assert all(worker["resumed"])
        assert all(worker["resumed without"])
        assert worker["changed since"]
        decayed, biases = 8 * 7 + 14 + 21 + 6, 7 + 3 + 2
        assert worker["sizes"] == [[], [], *[[-(-decayed // 2)]] * 2, *[[biases // 2]] * 2]
    np.testing.assert_equal(*[worker["half way"] for worker in found])
    # Three replicas of one process go on from what two workers wrote.
    loop = make_loop(strategy_of("mirrored", 3), sharded=True)
    loop.restore(folder / "kept" / "checkpoints")
    assert loop.position.steps == 10
    np.testing.assert_equal(whole_values(loop.step.saved_variables), found[0]["half way"])
    loop.fit(data(), epochs=3, verbose=0)
    with pytest.warns(UserWarning, match="Skipping variable loading"):
        keras.saving.load_model(folder / "sharded" / "model.keras")
