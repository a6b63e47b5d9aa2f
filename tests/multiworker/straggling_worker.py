"""The job of test_straggler.py: worker 1 is slow in its model, then in its input; each worker writes who it is told.

Arguments: the folder of the results.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import mirrorkit as mk
from mirrorkit._keras import keras

SECONDS = 0.02


def slowly(x: tf.Tensor, seconds: float) -> tf.Tensor:
    """Return `x` after so many seconds."""

    def sleep() -> np.float32:
        time.sleep(seconds)
        return np.float32(0)

    with tf.control_dependencies([tf.numpy_function(sleep, [], tf.float32)]):
        return tf.identity(x)


def anatomy(strategy: tf.distribute.Strategy, *, model_seconds: float, input_seconds: float) -> mk.bench.Anatomy:
    """Take a small training apart that sleeps in each step."""

    class Slow(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            return slowly(x, model_seconds)

    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), Slow(), keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD(0.01)
    loop = mk.train.Loop(strategy, mk.train.Step(model, optimizer, loss="mse"))
    numbers = np.ones([64, 4], np.float32), np.ones([64, 1], np.float32)
    data = tf.data.Dataset.from_tensor_slices(numbers).batch(8).map(lambda x, y: (slowly(x, input_seconds), y))
    return mk.bench.anatomy(loop, data, repeats=3)


if __name__ == "__main__":
    made = mk.strategy.create("auto", start_timeout=120)
    worker = mk.strategy.worker_index(made)
    mine = SECONDS * (worker == 1)
    slow = {"model": anatomy(made, model_seconds=mine, input_seconds=0.0)}
    slow["input"] = anatomy(made, model_seconds=0.0, input_seconds=mine)
    found = {
        where: {"straggler": a.straggler, "workers": list(a.workers), "parts": dict(a.parts), "text": str(a)}
        for where, a in slow.items()
    }
    Path(sys.argv[1], f"found{worker}.json").write_text(json.dumps(found))
