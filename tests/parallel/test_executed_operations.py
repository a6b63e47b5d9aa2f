"""Forward pass, backward pass and update run where the weights lie."""

from __future__ import annotations

from typing import Any

import pytest
from device_choice import device_name
from executed import executed
from placed_nets import cnn, data, halves, lstm, make_loop, mlp, transformer

# Of each half: its products in the forward pass, and two for each in the backward pass, for the weights and for the
# inputs; the first layer's inputs need none. Attention has four projections and two products. An update writes each
# weight, two slots of it, the seeds and statistics of layers, and iterations on the first device; it takes the root of
# each weight's or group of small weights' slot, and on the first device those of two numbers that all have in common.
EXPECTED = {
    mlp: [
        {"forward": 1, "backward": 1, "written": 3 * 2 + 1, "square roots": 2 + 2},
        {"forward": 2, "backward": 4, "written": 3 * 4, "square roots": 4},
    ],
    cnn: [
        {"forward": 1, "backward": 1, "written": 3 * 3 + 2 + 1, "square roots": 3 + 2},
        {"forward": 2, "backward": 4, "written": 3 * 5 + 2, "square roots": 3},
    ],
    transformer: [
        {"forward": 7, "backward": 14, "written": 3 * 15 + 1, "square roots": 6 + 2},
        {"forward": 8, "backward": 16, "written": 3 * 16, "square roots": 6},
    ],
}


def expected(net: Any, replicas: int) -> dict[tuple[str, str], int]:
    return {
        (device_name(2 * replica + device), what): count
        for replica in range(replicas)
        for device, of_device in enumerate(EXPECTED[net])
        for what, count in of_device.items()
    }


@pytest.mark.slow  # fast: with options, below
@pytest.mark.parametrize(("net", "replicas"), [(cnn, 1), (transformer, 2)])
def test_each_half_computes_on_its_device(net: Any, replicas: int) -> None:
    found = executed(lambda: make_loop(net, halves(replicas), replicas).fit(data(net, count=32), verbose=0))
    assert found == expected(net, replicas)


def test_with_options_of_a_step() -> None:
    """With the writes that they add on both devices: averages; the scale and its counters."""
    options: dict[str, Any] = {"loss_scale": "dynamic", "clip_norm": 1.0, "ema": 0.9}
    found = executed(lambda: make_loop(mlp, halves(), **options).fit(data(mlp, count=32), verbose=0))
    usual, written = expected(mlp, 1), [(device_name(i), "written") for i in range(2)]
    assert found == {**usual, **{of: usual[of] + n for of, n in zip(written, (2 + 3, 4), strict=True)}}


@pytest.mark.parametrize("what", ["evaluate", pytest.param("predict", marks=pytest.mark.slow)])
def test_without_training(what: str) -> None:
    def run() -> None:
        getattr(make_loop(mlp, halves()), what)(data(mlp, count=32))

    found = executed(run, within="" if what == "predict" else "while/body")
    assert [found[device_name(i), "forward"] for i in range(2)] == [1, 2]


@pytest.mark.slow
def test_loops_within_a_layer() -> None:
    """An LSTM has two products in a time step, and three in its backward pass, four if its inputs need a gradient."""
    found = executed(lambda: make_loop(lstm, halves()).fit(data(lstm, count=32), verbose=0))
    of_device = [found[device_name(i), "forward"] + found[device_name(i), "backward"] for i in range(2)]
    assert of_device == [2 + 3, 2 + 4 + 1 + 2]


@pytest.mark.slow
def test_the_check_of_the_first_batch() -> None:
    """It calls the model on a few rows and on two parts of them in one trace, on the first replica."""
    outside = r"^(?!.*while)"  # of the training
    found = executed(lambda: make_loop(mlp, halves(2), 2).fit(data(mlp, count=32), verbose=0), within=outside)
    assert [found[device_name(i), "forward"] for i in range(4)] == [3, 6, 0, 0]
