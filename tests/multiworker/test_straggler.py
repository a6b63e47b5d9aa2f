"""The anatomy of a step names the worker that holds the others up, on every worker, and each one's input rate."""

from __future__ import annotations

import threading
import time
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from anatomy import Anatomy, anatomy

import mirrorkit as mk

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


def anatomy_of(
    strategy: tf.distribute.Strategy,
    *,
    model_seconds: float = 0.0,
    input_seconds: float = 0.0,
    data: mk.data.Batches | None = None,
) -> Anatomy:
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
    return anatomy(loop, whole if data is None else data, repeats=3)


def told(strategy: tf.distribute.Strategy) -> dict[str, dict[str, Any]]:
    """What a worker is told where worker 1 is slow in its model, in its input, and in its own rows of a recipe."""
    is_slow = mk.strategy.worker_index(strategy) == 1
    slow = {
        "model": anatomy_of(strategy, model_seconds=SECONDS * is_slow),
        "input": anatomy_of(strategy, input_seconds=SECONDS * is_slow),
        "rows": anatomy_of(strategy, data=slow_rows(SECONDS if is_slow else SECONDS / 5)),
    }
    return {
        where: {"straggler": a.straggler, "workers": list(a.workers), "rates": list(a.input_rates), "text": str(a)}
        for where, a in slow.items()
    }


@pytest.fixture(scope="module")
def found(on_workers: Any) -> list[dict[str, dict[str, Any]]]:
    return on_workers(told)


@pytest.mark.slow  # two workers, which compile and sleep
@pytest.mark.alone  # it measures how long they sleep
def test_every_worker_is_told_which_one_is_slow(found):
    for worker in found:
        for where in ("model", "input"):
            fast, slow = worker[where]["workers"]
            assert worker[where]["straggler"] == 1
            assert slow >= 0.9 * SECONDS
            assert fast < 0.5 * SECONDS, "the wait for the slow worker is not the fast one's own"
            assert "worker 1 holds the others up" in worker[where]["text"]
        # 8 rows a batch, which each worker reads whole; 4 of them are its own.
        assert worker["input"]["rates"][1] <= 4 / (0.9 * SECONDS)
        # Of a recipe each reads 4 of the 8: a row takes SECONDS on worker 1, a fifth of it on worker 0. A busy machine
        # sleeps longer; with all 8 it would be half as fast.
        rates = worker["rows"]["rates"]
        assert 0.6 / SECONDS < rates[1] <= 1 / (0.9 * SECONDS)
        assert 2 * rates[1] < rates[0] <= 5 / (0.9 * SECONDS)
        assert worker["rows"]["straggler"] == 1
        both = f"{rates[0]:,.0f} + {rates[1]:,.0f} = {sum(rates):,.0f} examples/s"
        assert f"Input alone, by worker: {both}; the training takes" in worker["rows"]["text"]
