"""The job of test_straggler.py: worker 1 is slow in its model, then in its input; each worker writes who it is told.

At last it is slow in its own rows, those of a recipe.

Arguments: the folder of the results.
"""

from __future__ import annotations

import json
import sys
import threading
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


def slow_rows(row_seconds: float) -> mk.data.Batches:
    """Return batches of 8 rows, of which each takes so many seconds, one after the other."""
    one_at_a_time = threading.Lock()

    def sleep(x: np.ndarray) -> np.ndarray:
        with one_at_a_time:
            time.sleep(row_seconds * len(x))
        return x

    def read(x: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.ensure_shape(tf.numpy_function(sleep, [x], tf.float32), x.shape), y

    split = mk.data.arrays(np.ones([128, 4], np.float32), np.ones([128, 1], np.float32))
    return mk.data.batches(split, global_batch_size=8, map=read)


def anatomy(
    strategy: tf.distribute.Strategy,
    *,
    model_seconds: float = 0.0,
    input_seconds: float = 0.0,
    data: mk.data.Batches | None = None,
) -> mk.bench.Anatomy:
    """Take a small training apart that sleeps in each step."""

    class Slow(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            return slowly(x, model_seconds)

    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), Slow(), keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD(0.01)
    loop = mk.train.Loop(strategy, mk.train.Step(model, optimizer, loss="mse"))
    numbers = np.ones([64, 4], np.float32), np.ones([64, 1], np.float32)
    whole = tf.data.Dataset.from_tensor_slices(numbers).batch(8).map(lambda x, y: (slowly(x, input_seconds), y))
    return mk.bench.anatomy(loop, whole if data is None else data, repeats=3)


if __name__ == "__main__":
    made = mk.strategy.create("auto", start_timeout=120)
    worker = mk.strategy.worker_index(made)
    mine = SECONDS * (worker == 1)
    slow = {"model": anatomy(made, model_seconds=mine)}
    slow["input"] = anatomy(made, input_seconds=mine)
    slow["rows"] = anatomy(made, data=slow_rows(SECONDS if worker == 1 else SECONDS / 5))
    found = {
        where: {"straggler": a.straggler, "workers": list(a.workers), "rates": list(a.input_rates), "text": str(a)}
        for where, a in slow.items()
    }
    Path(sys.argv[1], f"found{worker}.json").write_text(json.dumps(found))
