"""What each device of a training holds and computes."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np

import mirrorkit as mk
from mirrorkit._keras import keras


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
    assert [line.split()[:2] for line in lines[1:]] == [["CPU:0", "128"], ["CPU:1", "64"]]
