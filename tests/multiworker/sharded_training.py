"""Trainings without and with sharded optimizer state, one of them in two parts; run by the tests.

Run: python -m mirrorkit launch --workers 2 sharded_training.py FOLDER
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import mirrorkit as mk
from mirrorkit.train.step.sharded_slots import whole_values


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


def refusal(strategy: tf.distribute.Strategy) -> str:
    """What a layout says of several workers."""
    try:
        with mk.parallel.Layout({".": 0}, devices=["cpu:0"]), strategy.scope():
            keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    except mk.errors.StepError as error:
        return str(error)
    return ""


def main() -> None:
    strategy = mk.strategy.create("auto", start_timeout=120)
    folder, me = Path(sys.argv[1]), mk.strategy.worker_index(strategy)
    expected = fit(make_loop(strategy, sharded=False), folder / "plain", 4)
    first = make_loop(strategy, sharded=True)
    first.warm_up(data())
    half_way = fit(first, folder / "sharded", 2)
    if me == 0:
        for copy in ("copy", "kept"):
            shutil.copytree(folder / "sharded", folder / copy)
    mk.strategy.wait_for_all(strategy, "copied")

    def same(found: list[np.ndarray]) -> list[bool]:
        return [np.array_equal(a, b) for a, b in zip(found, expected, strict=True)]

    report: dict[str, Any] = {
        "refusal": refusal(strategy),
        "resumed": same(fit(make_loop(strategy, sharded=True), folder / "sharded", 4)),
        "resumed without": same(fit(make_loop(strategy, sharded=False), folder / "copy", 4)),
        "half way": same(half_way),
        "sizes": [[int(n) for n in v.shape] for v in first.step.optimizer.variables],
    }
    mk.train.export(first, folder / "exported.keras")
    np.savez(folder / f"half{me}.npz", *half_way)
    (folder / f"found{me}.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main()
