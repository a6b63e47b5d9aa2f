"""The anatomy of a step names the worker that holds the others up, on every worker, and each one's input rate."""

from __future__ import annotations

import threading
import time
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from anatomy import anatomy

import mirrorkit as mk

SECONDS = 0.02


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


def asked(strategy: tf.distribute.Strategy) -> dict[str, Any]:
    """What a worker is told of a small training where worker 1 is slow in its own rows of a recipe."""
    is_slow = mk.strategy.worker_index(strategy) == 1
    with strategy.scope():
        model, optimizer = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)]), keras.optimizers.SGD(0.01)
    loop = mk.train.Loop(strategy, mk.train.Step(model, optimizer, loss="mse"))
    found = anatomy(loop, slow_rows(SECONDS if is_slow else SECONDS / 5), repeats=3)
    return {"straggler": found.straggler, "rates": list(found.input_rates), "text": str(found)}


@pytest.mark.slow  # two workers, which compile and sleep
@pytest.mark.alone  # it measures how long they sleep
def test_every_worker_is_told_which_one_is_slow(found):
    """Each reads 4 of the 8 rows: one takes SECONDS on worker 1, a fifth of it on worker 0.

    A busy machine sleeps longer; with all 8 it would be half as fast.
    """
    for worker in found:
        rates = worker["rates"]
        assert 0.6 / SECONDS < rates[1] <= 1 / (0.9 * SECONDS)
        assert 2 * rates[1] < rates[0] <= 5 / (0.9 * SECONDS)
        assert worker["straggler"] == 1
        assert "worker 1 holds the others up" in worker["text"]
        both = f"{rates[0]:,.0f} + {rates[1]:,.0f} = {sum(rates):,.0f} examples/s"
        assert f"Input alone, by worker: {both}; the training takes" in worker["text"]
