"""What each device holds, and the bits of variables."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.checks.bits import checksums, to_words
from mirrorkit.errors import StepError


def made(layout: Any) -> mk.checks.OnDevices:
    strategy = mk.strategy.create("one_device", devices=["cpu:0"]) if layout is None else layout.strategy()
    with layout or contextlib.nullcontext(), strategy.scope():
        step = mk.train.Step(net(), keras.optimizers.Adam(), loss="mse")
    data = mk.data.batches(mk.data.arrays(np.ones((8, 4)), np.ones((8, 2), "float32")), global_batch_size=4)
    return mk.checks.on_devices(mk.train.Loop(strategy, step), data)


def net() -> Any:
    x = keras.Input([4])
    h = keras.layers.Dense(8, use_bias=False, name="first")(x)
    return keras.Model(x, keras.layers.Dense(2, use_bias=False, name="second")(h))


def test_a_layout_divides_both() -> None:
    """The sums of both devices are those of one, but for what a device more needs."""
    whole = made(None)
    assert list(whole.memory) == ["CPU:0"]
    assert whole.memory["CPU:0"]["weights"] == 4 * (4 * 8 + 8 * 2)
    assert whole.operations["CPU:0"]["update"] > whole.operations["CPU:0"]["backward"] > 0
    found = made(mk.parallel.Layout({"first": 0, "second": 1}, devices=["cpu:0", "cpu:1"]))
    assert {device: parts["weights"] for device, parts in found.memory.items()} == {"CPU:0": 128, "CPU:1": 64}
    for name in ("forward", "backward"):
        assert all(found.operations[device][name] > 0 for device in ("CPU:0", "CPU:1"))
        assert sum(parts[name] for parts in found.operations.values()) == whole.operations["CPU:0"][name]
    lines = str(found).splitlines()
    assert [line.split()[:2] for line in lines] == [["CPU:0:", "128"], ["CPU:1:", "64"]]


# --- words and checksums: every bit and its place count


def of_bytes(data: bytes, dtype: tf.DType, *shape: int) -> tf.Tensor:
    return tf.constant(np.frombuffer(data, dtype.as_numpy_dtype).reshape(shape))


def test_text_has_no_words() -> None:
    with pytest.raises(StepError, match="variable of string"):
        to_words(tf.constant(["a"]))


@pytest.mark.parametrize("dtype", [tf.uint8, tf.bfloat16, tf.float32, tf.int64, tf.complex128], ids=lambda t: t.name)
def test_every_single_bit_changes_the_checksum(dtype: tf.DType) -> None:  # of every size; two words in one
    """All variants at once: each is one of a list of tensors."""
    count = 2
    size = count * dtype.size
    data = np.random.default_rng(1).integers(0, 256, size, "uint8")
    flips = np.packbits(np.eye(8 * size, dtype="uint8"), axis=1)
    variants = [of_bytes(row.tobytes(), dtype, count) for row in np.concatenate([data[None], data[None] ^ flips])]
    sums = checksums(variants).numpy()
    assert len(set(sums.tolist())) == 1 + 8 * size


def test_the_order_counts() -> None:
    values = np.array([0.0, 1.0, -1.0, 2.0, 0.5, 1e-8, 3e38, -0.0, np.inf, np.nan], "float32")
    variants = [values]
    for i in range(len(values)):
        for j in range(i):
            swapped = values.copy()
            swapped[[i, j]] = swapped[[j, i]]
            variants.append(swapped)
    variants += [np.roll(values, shift) for shift in range(2, len(values) - 1)]
    # sums that weigh each place by its number alone would miss this one
    variants += [np.array(pattern, "float32") for pattern in ([1, 0, 0, 1], [0, 1, 1, 0])]
    sums = checksums([tf.constant(v) for v in variants]).numpy()
    assert len(set(sums.tolist())) == len(variants)


def test_large_tensors_and_the_same_change_twice() -> None:
    values = np.random.default_rng(2).normal(size=100_000).astype("float32")
    twice, negated = values.copy(), values.copy()
    twice[[10, 90_000]] += [1e-3, -1e-3]
    negated[[5, 50_000]] *= -1  # flips the highest bit of two words
    sums = checksums([tf.constant(v) for v in (values, twice, negated)]).numpy()
    assert len(set(sums.tolist())) == 3
    assert checksums([tf.constant(values)]).numpy()[0] == sums[0]
