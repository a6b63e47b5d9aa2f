"""Forward pass and backward pass run where the weights lie."""

from __future__ import annotations

from typing import Any

import pytest
from executed import executed
from placed_nets import cnn, data, halves, make_loop, mlp, transformer

# Of each half: its products in the forward pass, and two for each in the backward pass, for the weights and for the
# inputs; the first layer's inputs need none. Attention has four projections and two products.
EXPECTED = {
    mlp: {(0, "forward"): 1, (0, "backward"): 1, (1, "forward"): 2, (1, "backward"): 4},
    cnn: {(0, "forward"): 1, (0, "backward"): 1, (1, "forward"): 2, (1, "backward"): 4},
    transformer: {(0, "forward"): 7, (0, "backward"): 14, (1, "forward"): 8, (1, "backward"): 16},
}


@pytest.mark.parametrize("net", [mlp, cnn, transformer])
@pytest.mark.parametrize("replicas", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_each_half_computes_on_its_device(net: Any, replicas: int) -> None:
    found = executed(lambda: make_loop(net, halves(replicas), replicas).fit(data(net, count=32), verbose=0))
    assert found == {
        (f"CPU:{2 * replica + device}", what): count
        for replica in range(replicas)
        for (device, what), count in EXPECTED[net].items()
    }


@pytest.mark.parametrize("options", [{"accumulate": 2}, {"loss_scale": "dynamic", "clip_norm": 1.0, "ema": 0.9}])
def test_with_options_of_a_step(options: dict[str, Any]) -> None:
    found = executed(lambda: make_loop(mlp, halves(), **options).fit(data(mlp, count=32), verbose=0))
    times = options.get("accumulate", 1)
    assert found == {(f"CPU:{device}", what): times * count for (device, what), count in EXPECTED[mlp].items()}


@pytest.mark.parametrize("what", ["evaluate", "predict"])
def test_without_training(what: str) -> None:
    def run() -> None:
        getattr(make_loop(mlp, halves()), what)(data(mlp, count=32))

    found = executed(run, within="" if what == "predict" else "while/body")
    assert found == {("CPU:0", "forward"): 1, ("CPU:1", "forward"): 2}


@pytest.mark.slow
def test_the_check_of_the_first_batch() -> None:
    """It calls the model on a few rows in one trace, on the first replica."""
    outside = r"^(?!.*while)"  # of the training
    found = executed(lambda: make_loop(mlp, halves(2), 2).fit(data(mlp, count=32), verbose=0), within=outside)
    assert found == {("CPU:0", "forward"): 1, ("CPU:1", "forward"): 2}
