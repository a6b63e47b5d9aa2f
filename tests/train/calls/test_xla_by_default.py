"""jit_compile="auto": XLA on one GPU, where it can compile a step and its result stays the same.

Here a CPU device is taken for the GPU; `tests/train/calls/test_xla.py` has what XLA is asked for by name.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import config
from training_helpers import largest_difference, sequential

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.train.reduce import xla

L = keras.layers


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xla, "replica_devices", lambda strategy: ["/device:GPU:0"] * strategy.num_replicas_in_sync)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the functions that XLA compiled."""
    names, function = [], tf.function

    def recorded(of: Any = None, *, jit_compile: Any = None, **options: Any) -> Any:
        if of is None:
            return lambda given: recorded(given, jit_compile=jit_compile, **options)
        if jit_compile and of.__name__ not in ("of_tensors", "tanh"):  # which are tried, and not used
            names.append(of.__name__)
        return function(of, jit_compile=jit_compile, **options)

    monkeypatch.setattr(tf, "function", recorded)
    return names


def net(*layers: Any) -> Callable[[], Any]:
    return lambda: sequential((4,), L.Dense(8, activation="tanh"), *(layer() for layer in layers), L.Dense(5))


def trained(strategy: tf.distribute.Strategy, make: Callable[[], Any], data: Any, **of_step: Any) -> list[np.ndarray]:
    """Weights and history after one epoch."""
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model, optimizer = make(), keras.optimizers.SGD(0.1, momentum=0.9)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    loop = mk.train.Loop(strategy, mk.train.Step(model, optimizer, loss=loss, metrics=["accuracy"], **of_step))
    history = loop.fit(data, verbose=0).history
    return [*model.get_weights(), *history.values()]


@pytest.fixture
def split() -> Any:
    """In batches of 12 the last has 10, a size that XLA does not know."""
    rng = np.random.default_rng(0)
    return mk.data.arrays(rng.normal(size=(34, 4)).astype("float32"), rng.integers(0, 5, 34))


@pytest.fixture
def resident(split: Any) -> Any:
    return mk.data.resident(split, global_batch_size=12, shuffle=True, seed=3)


@pytest.fixture
def even(split: Any) -> Any:
    return mk.data.resident(split, global_batch_size=12, drop_remainder=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param({"accumulate": 2, "clip_norm": 0.1, "ema": 0.9, "loss_scale": "dynamic"}, marks=pytest.mark.slow),
    ],
    ids=["plain", "with options"],
)
def test_whole_calls_on_a_gpu(
    options: dict[str, Any], strategy_of: Any, resident: Any, compiled: list[str], on_gpu: None
) -> None:
    """With the random numbers that they have without it."""
    strategy, make = strategy_of("one_device", 1), net(L.BatchNormalization, lambda: L.Dropout(0.5, seed=1))
    plain = trained(strategy, make, resident, jit_compile=False, **options)
    assert compiled == []
    found = trained(strategy, make, resident, **options)
    assert {"many", "shard_sums"} <= set(compiled)
    assert largest_difference(plain, found) < 1e-5  # measured: 3.2e-7


@pytest.mark.slow
def test_asked_for_on_several_the_steps(strategy_of: Any, even: Any, compiled: list[str]) -> None:
    """With the results that they have without it, and random numbers of each replica's own."""
    strategy, make = strategy_of("mirrored", 3), net(lambda: L.Dropout(0.5, seed=1))
    plain = trained(strategy, make, even)
    assert compiled == []
    found = trained(strategy, make, even, jit_compile=True)
    assert "shard_sums" in compiled
    assert "many" not in compiled
    assert largest_difference(plain, found) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["host", pytest.param("mapped", marks=pytest.mark.slow)])
def test_where_calls_cannot_be_compiled_the_steps_are(
    kind: str, strategy_of: Any, split: Any, compiled: list[str], on_gpu: None
) -> None:
    """Data from the host; a map of the data that XLA does not know, where it knows the step."""
    if kind == "host":
        data = mk.data.batches(split, global_batch_size=12)
    else:
        data = mk.data.resident(split, global_batch_size=12, map=lambda x, y: (Text()(x), y))
    trained(strategy_of("one_device", 1), net(), data)
    assert "shard_sums" in compiled
    assert "many" not in compiled


class Categorical(L.Layer):
    def call(self, x: Any) -> Any:
        return x + tf.cast(tf.random.stateless_categorical(tf.stop_gradient(x), 1, [1, 2]), x.dtype)


class Text(L.Layer):
    def call(self, x: Any) -> Any:
        return tf.strings.to_number(tf.strings.as_string(tf.stop_gradient(x))) + x


class Table(L.Layer):
    def __init__(self) -> None:
        super().__init__()
        keys = tf.lookup.KeyValueTensorInitializer(tf.constant([1], tf.int64), tf.constant([2.0]))
        self.table = tf.lookup.StaticHashTable(keys, 0.0)

    def call(self, x: Any) -> Any:
        return x + self.table.lookup(tf.cast(x, tf.int64))


class Asserting(L.Layer):
    def call(self, x: Any) -> Any:
        with tf.control_dependencies([tf.debugging.assert_less(x, 100.0, name="small")]):
            return tf.identity(x)


class OfASizeAmongTheValues(L.Layer):
    def call(self, x: Any) -> Any:
        return x + 0 * tf.cast(tf.size(tf.range(tf.cast(x[0, 0], tf.int32))), x.dtype)


class OfItsOwn(L.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.supports_jit = False

    def call(self, x: Any) -> Any:
        return x


@pytest.mark.parametrize(
    ("layer", "why"),
    [
        (Categorical, "XLA would draw other random numbers"),
        (Text, "XLA cannot compile it: .*(AsString|StringToNumber)"),
        (Table, "XLA knows no resources but variables"),
        (Asserting, "XLA would not check what .*small"),
        (OfASizeAmongTheValues, "XLA cannot compile it: .*compile-time constant"),
    ],
    ids=["categories", "strings", "table", "asserts", "sizes"],
)
def test_what_it_does_not_take(layer: Callable[[], Any], why: str, caplog: pytest.LogCaptureFixture) -> None:
    model = net(layer)()
    with caplog.at_level(logging.INFO, "mirrorkit"):
        assert not xla.takes(model, tf.TensorSpec([12, 4]))
    assert re.search(f"leaves XLA off on this GPU: {why}", caplog.text)


def test_where_it_is_not_the_default(strategy_of: Any, request: pytest.FixtureRequest) -> None:
    assert not xla.is_one_gpu(strategy_of("one_device", 1))
    request.getfixturevalue("on_gpu")
    assert xla.is_one_gpu(strategy_of("one_device", 1))
    assert not xla.is_one_gpu(strategy_of("mirrored", 2))
    assert xla.unsupported([L.Dense(1)]) is None
    assert "not for of_its_own" in str(xla.unsupported([L.Dense(1), OfItsOwn()]))
    config.enable_op_determinism()
    try:
        assert "deterministic" in str(xla.unsupported([L.Dense(1)]))
    finally:
        config.disable_op_determinism()


def test_where_xla_does_not_work(monkeypatch: Any, caplog: Any) -> None:
    xla._broken.cache_clear()
    monkeypatch.setattr(tf.math, "tanh", lambda x: 1 / 0)
    try:
        assert not xla.takes(lambda x: 2 * x, tf.TensorSpec([3]))
    finally:
        xla._broken.cache_clear()
    assert "XLA does not work on" in caplog.text


def test_to_look_at_a_function_draws_no_numbers(strategy_of: Any, resident: Any, on_gpu: None) -> None:
    strategy_of("one_device", 1)
    tf.random.set_seed(0)
    expected = tf.random.normal([3]).numpy()
    tf.random.set_seed(0)
    assert xla.takes(lambda x: 2 * x, tf.TensorSpec([3]))
    np.testing.assert_array_equal(tf.random.normal([3]).numpy(), expected)


def test_batches_of_unknown_sizes_are_left_to_tensorflow(
    strategy_of: Any, split: Any, caplog: pytest.LogCaptureFixture, on_gpu: None
) -> None:
    """XLA would compile again for each size."""
    dataset = mk.data.batches(split, global_batch_size=12).dataset().unbatch().batch(12)
    with caplog.at_level(logging.INFO, "mirrorkit"):
        trained(strategy_of("one_device", 1), net(), dataset)
    assert "static input shape" in caplog.text


def test_an_evaluation_that_draws_nothing_is_compiled(
    strategy_of: Any, even: Any, compiled: list[str], on_gpu: None
) -> None:
    strategy = strategy_of("one_device", 1)
    with strategy.scope():
        model, optimizer = net(lambda: L.Dropout(0.5, seed=1))(), keras.optimizers.SGD(0.1)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    mk.train.Loop(strategy, mk.train.Step(model, optimizer, loss=loss)).evaluate(even)
    assert {"many", "shard_sums"} <= set(compiled)
