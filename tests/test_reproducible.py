"""Reproducible mode, where it is really enabled in a fresh process: it cannot be switched off again."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.errors import ArgumentError

# Everything that draws or sums: augmentation of uint8 images, BatchNorm, Dropout, Adam, four replicas, an uneven batch.
TRAIN = """
    import hashlib, json, warnings
    import mirrorkit as mk
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it is not too late
        mk.reproducible.enable()
    strategy = mk.strategy.create("mirrored", devices="cpu:4")
    import numpy as np, keras
    pixels = np.random.default_rng(0).integers(0, 256, (90, 8, 8, 3), "uint8")  # the data is given, not drawn
    split = mk.data.arrays(pixels, np.arange(90) % 5)
    crop = mk.data.augment.pad_and_crop(2)
    train = mk.data.batches(split, global_batch_size=16, shuffle=True, augment=[mk.data.augment.flip(), crop])
    L = keras.layers
    with strategy.scope():
        layers = [L.Rescaling(1 / 255), L.Conv2D(8, 3), L.BatchNormalization(), L.ReLU(), L.Flatten(), L.Dropout(0.5)]
        model = keras.Sequential([keras.Input((8, 8, 3)), *layers, L.Dense(5)])
        optimizer = keras.optimizers.Adam(0.01)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    step = mk.train.Step(model, optimizer, loss=loss, metrics=["accuracy"])
    loop = mk.train.Loop(strategy, step)
    loop.warm_up(train)
    report = loop.fit(train, epochs=2, verbose=0)
    bits = b"".join(variable.numpy().tobytes() for variable in step.variables)
    print(json.dumps([hashlib.sha256(bits).hexdigest(), report.history["loss"]]))
"""


@pytest.mark.slow  # two processes
def test_two_runs_give_equal_bits(run_python: Callable[..., Any]) -> None:
    with ThreadPoolExecutor(2) as two:
        one, again = two.map(lambda _: run_python(TRAIN).json(), range(2))
    assert one == again


# Seeds alone do not make these repeatable on several CPU threads: random numbers drawn in parallel by tf.data, and
# rows added to a table, whose sum depends on the order in which they come.
REPEAT = """
    import json
    import tensorflow as tf
    import mirrorkit as mk
    from mirrorkit._keras import keras

    def drawn():
        numbers = tf.data.Dataset.range(64).map(
            lambda i: tf.random.uniform([1000]) + tf.cast(i, tf.float32), num_parallel_calls=8
        )
        return b"".join(value.numpy().tobytes() for value in numbers)

    def added():
        table = tf.Variable(tf.zeros([50, 8]))
        rows = tf.random.stateless_uniform([50_000], [1, 2], 0, 50, tf.int32)
        table.scatter_add(tf.IndexedSlices(tf.random.stateless_normal([50_000, 8], [3, 4]), rows))
        return table.numpy().tobytes()

    def several(function):
        results = set()
        for _ in range(8):
            keras.utils.set_random_seed(0)
            results.add(function())
        return len(results)

    seeds_only = [several(drawn), several(added)]
    mk.reproducible.enable()
    print(json.dumps([seeds_only, [several(drawn), several(added)]]))
"""


@pytest.mark.slow
def test_random_numbers_drawn_in_parallel_and_rows_added_in_parallel_repeat(run_python: Callable[..., Any]) -> None:
    threads = {"TF_NUM_INTRAOP_THREADS": "4"}  # more than one, however few cores there are
    seeds_only, enabled = run_python(REPEAT, env=threads).json()
    assert enabled == [1, 1]
    assert max(seeds_only) > 1, "seeds alone were enough: this test guards nothing any more"


def test_every_library_is_seeded_and_a_late_call_says_what_it_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    deterministic: list[bool] = []
    monkeypatch.setattr(tf.config.experimental, "enable_op_determinism", lambda: deterministic.append(True))
    monkeypatch.setattr(mk.reproducible, "_enabled", False)

    def draws(seed: int) -> list[float]:
        with pytest.warns(UserWarning, match=r"variables and \d+ datasets were created.* at the top"):
            mk.reproducible.enable(seed)
        dense = keras.layers.Dense(1)
        dense.build((None, 1))
        return [random.random(), np.random.rand(), float(tf.random.uniform([])), float(dense.kernel.numpy()[0, 0])]

    made = keras.Variable(1.0), tf.data.Dataset.range(1)  # which live until the end of the test
    one, other = draws(0), draws(1)
    assert one == draws(0) == draws(np.int64(0))
    assert all(a != b for a, b in zip(one, other, strict=True))
    assert deterministic == [True] * 4
    del made


@pytest.mark.parametrize("seed", [-1, 2**32, 1.5, True, None, "0"])
def test_what_is_no_seed(seed: Any) -> None:
    with pytest.raises(ArgumentError, match="whole number from 0"):
        mk.reproducible.enable(seed=seed)
