"""The anatomy of a step: its parts from timings, the verdict, and the input without a training."""

from __future__ import annotations

import time

import anatomy as module
import numpy as np
import pytest
import tensorflow as tf
from anatomy import anatomy, parts_of, without_dispatch

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.errors import StepError

# --- the parts of a step from timings that are made up, the verdict, and refusals


def test_parts_are_the_differences_of_variants_with_the_cost_of_calls_taken_out():
    """A machine on which all is known: a call costs 6 ms, and each part of a step its own time."""
    own = {"input": 5e-3, "compute": 10e-3, "all_reduce": 2e-3, "update": 1e-3}
    steps = {"whole": 4, "input": 8, "fixed": 10, "reduce": 10, "compute": 20}
    net = {
        "whole": 18e-3,
        "input": 7e-3,
        "fixed": 13e-3,
        "reduce": 12e-3,
        "compute": 10e-3,
    }
    timed = {name: net[name] + 6e-3 / steps[name] for name in net}
    dispatch, found = without_dispatch(timed, single=13e-3 + 6e-3, steps=steps)
    assert dispatch == pytest.approx(6e-3)
    assert found == pytest.approx(net)
    assert parts_of(found) == pytest.approx(own)


def test_the_parts_of_a_users_own_step_are_unknown(strategy_of):
    class Own:
        def build(self, strategy): ...
        def compute(self, batch): ...
        def update(self, strategy, sums): ...

    with pytest.raises(StepError, match="parts of Own"):
        anatomy(mk.train.Loop(strategy_of("mirrored", 2), Own()), None)


# --- the variants of a step, by the anatomy that is made of them: what is slow is found, and nothing is changed


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
