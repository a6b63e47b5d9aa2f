"""The variants of a step, by the anatomy that is made of them: what is slow is found, and nothing is changed."""

from __future__ import annotations

import time

import anatomy as module
import numpy as np
import pytest
import tensorflow as tf
from anatomy import Variants, anatomy

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.errors import StepError


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    monkeypatch.setattr(module, "_SECONDS", 0.1)


def make_loop(strategy, **options):
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dropout(0.5), keras.layers.Dense(1)])
        optimizer = keras.optimizers.Adam()
    return mk.train.Loop(strategy, mk.train.Step(model, optimizer, loss="mse", **options))


def split(examples):
    generator = np.random.default_rng(0)
    return mk.data.arrays(generator.random([examples, 4], np.float32), generator.random([examples, 1], np.float32))


@pytest.mark.slow
def test_a_slow_input_is_found_and_nothing_of_the_training_is_changed(strategy_of):
    """A batch takes 10 ms to make, one after the other, where a step of four weights takes about one.

    An epoch holds one update of two whole batches, which is measured again and again, and a smaller batch.
    """
    strategy = strategy_of("mirrored", 2)
    loop = make_loop(strategy, accumulate=2)

    def slow(x, y):
        with tf.control_dependencies([tf.py_function(lambda: time.sleep(0.01) or 0.0, [], tf.float32)]):
            return tf.identity(x), y

    data = tf.data.Dataset.from_tensor_slices((split(23).images, split(23).labels)).batch(8).map(slow)
    trained = [copy for v in loop.step.variables for copy in strategy.experimental_local_results(v.value)]
    before = [copy.numpy() for copy in trained]
    found = anatomy(loop, data, repeats=2)
    assert found.bound == "input"
    assert found.shares["input"] > 0.5
    assert found.seconds > 0.018
    assert found.input_alone > 0.018
    assert found.input_rates[0] < 8 / 0.009
    assert found.examples_per_second < 8 / 0.009
    assert all(np.array_equal(old, copy.numpy()) for old, copy in zip(before, trained, strict=True))


@pytest.mark.slow
def test_rates_are_examples_of_whole_updates_by_the_measured_times(strategy_of, monkeypatch):
    """Two batches of 8 in 50 ms of input alone, and in 100 ms of the whole step; the rest takes no time."""
    times = {"input": 0.05, "whole": 0.1}
    monkeypatch.setattr(Variants, "seconds", lambda self, name, steps: times.get(name, 1e-9))
    loop = make_loop(strategy_of("one_device", 1), accumulate=2)
    found = anatomy(loop, mk.data.batches(split(64), global_batch_size=8), repeats=1)
    assert found.input_rates == [pytest.approx(16 / 0.05)]
    assert found.examples_per_second == pytest.approx(16 / 0.1, rel=1e-3)
    with pytest.raises(StepError, match="accumulate=2"):
        anatomy(loop, mk.data.batches(split(15), global_batch_size=8), repeats=1)


@pytest.mark.slow
def test_a_heavy_model_on_resident_data_is_not_input_bound(strategy_of):
    strategy = strategy_of("one_device", 1)
    with strategy.scope():
        layers = [keras.Input((4,)), *(keras.layers.Dense(400) for _ in range(4)), keras.layers.Dense(1)]
        model, optimizer = keras.Sequential(layers), keras.optimizers.SGD()
    loop = mk.train.Loop(strategy, mk.train.Step(model, optimizer, loss="mse"))
    data = mk.data.resident(split(4097), global_batch_size=256, shuffle=True)  # the one more is no obstacle
    # 0.02 where it is quiet; other programs on the cores make differences uncertain, but not each time.
    each = (anatomy(loop, data, repeats=2) for _ in range(6))
    found = next((one for one in each if one.shares["input"] < 0.3), None)
    assert found is not None, "the input of resident data took 0.3 of the step or more in each of six measurements"
    assert found.input_alone < 0.3 * found.parts["compute"]
    assert found.workers == [pytest.approx(max(found.input_alone, found.parts["compute"]))]
