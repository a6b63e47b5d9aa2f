from __future__ import annotations

import time

import numpy as np
import pytest
import tensorflow as tf

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.bench.anatomy import Anatomy, in_turns, parts_of, without_dispatch
from mirrorkit.errors import StepError


def make_anatomy(**parts):
    whole = {"input": 0.0, "compute": 0.0, "all_reduce": 0.0, "update": 0.0, "python": 0.0, **parts}
    return Anatomy(sum(whole.values()), whole, input_alone=0.0, steps_per_call=7, spread=0.0)


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


def test_noise_does_not_make_a_part_negative():
    timed = {"fixed": 2.0, "whole": 1.0, "reduce": 3.0, "compute": 4.0}
    dispatch, net = without_dispatch(timed, 1.0, dict.fromkeys(timed, 5))
    assert dispatch == 0.0
    assert parts_of(net) == {"input": 0.0, "compute": 4.0, "all_reduce": 0.0, "update": 0.0}


@pytest.mark.parametrize(
    ("part", "verdict"),
    [
        ("input", "input-bound"),
        ("compute", "compute-bound"),
        ("all_reduce", "communication-bound"),
        ("update", "update-bound"),
        ("python", "Python-bound"),
    ],
)
def test_the_largest_part_gives_the_verdict(part, verdict):
    anatomy = make_anatomy(**{"compute": 1e-3, part: 3e-3})
    assert anatomy.bound == part
    assert sum(anatomy.shares.values()) == pytest.approx(1.0)
    lines = str(anatomy).splitlines()
    assert lines[-1].startswith(verdict)
    assert lines[0].startswith(f"step {1e3 * anatomy.seconds:.3f} ms")
    assert [line.split()[0] for line in lines[2:7]] == ["input", "compute", "all-reduce", "update", "python"]


@pytest.mark.parametrize(
    ("workers", "straggler"),
    [([1.0], None), ([1.0, 1.1], None), ([1.0, 1.5], 1), ([1.5, 1.0, 1.1, 1.0], 0), ([1.0, 1.0, 1.1, 1.0], None)],
)
def test_a_worker_is_a_straggler_when_it_is_a_fifth_slower_than_the_median_of_the_others(workers, straggler):
    anatomy = Anatomy(1.0, {"compute": 1.0}, 0.0, 1, 0.0, workers)
    assert anatomy.straggler == straggler


def test_variants_are_timed_in_turns():
    seen = []
    found = in_turns(lambda name, steps: seen.append((name, steps)) or float(len(seen)), {"a": 3, "b": 5}, 2)
    assert seen == [("a", 3), ("b", 5), ("a", 3), ("b", 5)]
    assert found == {"a": [1.0, 3.0], "b": [2.0, 4.0]}


def make_loop(strategy, **options):
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dropout(0.5), keras.layers.Dense(1)])
        optimizer = keras.optimizers.Adam()
    return mk.train.Loop(strategy, mk.train.Step(model, optimizer, loss="mse", **options))


def split(examples):
    generator = np.random.default_rng(0)
    return mk.data.arrays(generator.random([examples, 4], np.float32), generator.random([examples, 1], np.float32))


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_slow_input_is_found_and_nothing_of_the_training_is_changed(strategy_of, accumulate):
    """A batch takes 30 ms to make, one after the other, where a step of four weights takes about one."""
    strategy = strategy_of("mirrored", 2)
    loop = make_loop(strategy, accumulate=accumulate)

    def slow(x, y):
        with tf.control_dependencies([tf.py_function(lambda: time.sleep(0.03) or 0.0, [], tf.float32)]):
            return tf.identity(x), y

    data = tf.data.Dataset.from_tensor_slices((split(32).images, split(32).labels)).batch(8).map(slow)
    variables = [copy for v in loop.step.variables for copy in strategy.experimental_local_results(v.value)]
    before = [copy.numpy() for copy in variables]
    anatomy = mk.bench.anatomy(loop, data, repeats=2)
    assert anatomy.bound == "input"
    assert anatomy.shares["input"] > 0.5
    assert anatomy.seconds > 0.025 * accumulate
    assert anatomy.input_alone > 0.025 * accumulate
    assert all(np.array_equal(old, copy.numpy()) for old, copy in zip(before, variables, strict=True))


def test_a_heavy_model_on_resident_data_is_not_input_bound(strategy_of):
    strategy = strategy_of("mirrored", 2)
    with strategy.scope():
        layers = [keras.Input((4,)), *(keras.layers.Dense(400) for _ in range(4)), keras.layers.Dense(1)]
        model, optimizer = keras.Sequential(layers), keras.optimizers.SGD()
    loop = mk.train.Loop(strategy, mk.train.Step(model, optimizer, loss="mse"))
    data = mk.data.resident(split(4096), global_batch_size=256, shuffle=True)
    anatomy = mk.bench.anatomy(loop, data, repeats=3)
    assert anatomy.shares["input"] < 0.8  # quiet: 0.02; a neighbour on the same cores makes differences uncertain
    assert anatomy.parts["compute"] > 0
    assert anatomy.workers == [pytest.approx(max(anatomy.input_alone, anatomy.parts["compute"]))]


def test_no_repeats_are_refused_before_anything_is_timed():
    with pytest.raises(StepError, match=r"anatomy\(repeats=0\)"):
        mk.bench.anatomy(None, None, repeats=0)


def test_the_parts_of_a_users_own_step_are_unknown(strategy_of):
    class Own:
        def build(self, strategy): ...
        def compute(self, batch): ...
        def update(self, strategy, sums): ...

    with pytest.raises(StepError, match="parts of Own are unknown"):
        mk.bench.anatomy(mk.train.Loop(strategy_of("mirrored", 2), Own()), None)
