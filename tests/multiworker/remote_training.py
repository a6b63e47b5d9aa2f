"""Trains on files of each kind, on disk or at an address; run by the tests.

Run: python -m mirrorkit launch --workers 2 remote_training.py ROOT OUT
"""

from __future__ import annotations

import sys
from pathlib import Path

import keras
import numpy as np
from remote_sets import BATCH, KINDS

import mirrorkit as mk

READ = "records", "images", "table"


def model_of(kind: str) -> keras.Model:
    """A small model for the inputs of a kind."""
    if kind != "table":
        shape = (16, 16, 3) if kind == "records" else (9, 8, 3)
        layers = [keras.layers.Rescaling(1 / 255), keras.layers.Flatten(), keras.layers.Dense(10)]
        return keras.Sequential([keras.Input(shape), *layers])
    inputs = {
        "half": keras.Input((), name="half", dtype="float32"),
        "word": keras.Input((), name="word", dtype="string"),
    }
    hashed = keras.layers.Hashing(8, output_mode="one_hot")(keras.ops.expand_dims(inputs["word"], -1))
    return keras.Model(inputs, keras.layers.Dense(10)(hashed))


def main() -> None:
    root, out = sys.argv[1], Path(sys.argv[2])
    strategy = mk.strategy.create("auto", start_timeout=120)
    me = mk.strategy.worker_index(strategy)
    for kind in READ:
        train = KINDS[kind](root, global_batch_size=BATCH, shuffle=True)
        keras.utils.set_random_seed(0)  # here, since botocore draws from Python's random where it tries again
        with strategy.scope():
            model, optimizer = model_of(kind), keras.optimizers.SGD(0.1)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        loop = mk.train.Loop(strategy, mk.train.Step(model, optimizer, loss=loss, metrics=["accuracy"]))
        report = loop.fit(train, epochs=2, verbose=0)
        weights = {str(number): value for number, value in enumerate(model.get_weights())}
        np.savez(out / f"{kind}{me}.npz", **weights, loss=report.history["loss"])


if __name__ == "__main__":
    main()
