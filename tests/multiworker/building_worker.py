"""One of two workers: trains a model that is not built, and is told of shapes that do not fit."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import mirrorkit as mk
from mirrorkit.errors import StepError


def trained(strategy: tf.distribute.Strategy) -> dict[str, Any]:
    """The history and the weights of a training, and what a second one raises."""
    x = np.random.default_rng(0).normal(size=(50, 4)).astype("float32")

    def fitted(y: Any, units: int, batch: int) -> Any:
        keras.utils.set_random_seed(0)
        with strategy.scope():
            layers = [keras.layers.Dense(5, activation="tanh"), keras.layers.Dropout(0.3), keras.layers.Dense(units)]
            model, optimizer = keras.Sequential(layers), keras.optimizers.SGD(0.1)
        data = mk.data.batches(mk.data.arrays(x, y), global_batch_size=batch, shuffle=True)
        loop = mk.train.Loop(strategy, mk.train.Step(model, optimizer, loss="mse"))
        history = loop.fit(data, epochs=2, validation_data=data, verbose=0).history
        return {"history": history, "weights": [weight.tolist() for weight in model.get_weights()]}

    found = fitted(x[:, :1], 1, 12)
    try:
        fitted(x[:, 0], 10, 20)  # ten rows on each replica
    except StepError as error:
        found["error"] = str(error)
    return dict(found)


if __name__ == "__main__":
    made = mk.strategy.create("auto", start_timeout=120)
    result = Path(sys.argv[1]) / f"found{mk.strategy.worker_index(made)}.json"
    result.write_text(json.dumps(trained(made)))
