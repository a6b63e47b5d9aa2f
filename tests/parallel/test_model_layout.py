"""Rules and variables that do not fit each other are named."""

from __future__ import annotations

from typing import Any

import pytest
from placed_nets import HALVES, cnn, data, halves, make_loop, mlp

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.errors import DeviceError, StepError

CPUS = ["cpu:0", "cpu:1"]


def build(layout: mk.parallel.Layout, net: Any = mlp) -> Any:
    with layout, layout.strategy().scope():
        return net()


def devices(model: Any) -> dict[str, str]:
    return {variable.path: variable.value.device[-5:] for variable in model.variables}


def test_each_variable_lies_where_the_first_pattern_says() -> None:
    """Slots and averages come on the device of their weight; integers stay on the replica's first device."""
    found = devices(build(mk.parallel.Layout({"bias": 1, **HALVES}, devices=CPUS)))
    assert found["block0_dense/kernel"] == "CPU:0"
    assert found["block0_dense/bias"] == "CPU:1"
    assert found["head/kernel"] == "CPU:1"


def test_a_default_for_the_rest() -> None:
    found = devices(build(mk.parallel.Layout({"head": 1}, devices=CPUS, default=0)))
    assert {path for path, device in found.items() if device == "CPU:1"} == {"head/kernel", "head/bias"}


def test_an_optimizer_that_is_built_within_the_layout() -> None:
    """Its slots lie beside their weights, whatever the patterns say of their names."""
    layout = mk.parallel.Layout({"^block0": 0, "^block1|^head": 1}, devices=CPUS)
    with layout, layout.strategy().scope():
        model, optimizer = mlp(), keras.optimizers.Adam()
        optimizer.build(model.trainable_variables)
    found = {variable.path: variable.value.device[-5:] for variable in optimizer.variables}
    assert found["adam/block0_dense_kernel_momentum"] == "CPU:0"
    assert found["adam/head_kernel_velocity"] == "CPU:1"


def test_a_pattern_that_fits_nothing() -> None:
    with pytest.raises(StepError, match=r"No variable fits 'block7'.*\n.*  block0_dense/bias\n"):
        build(mk.parallel.Layout({**HALVES, "block7": 1}, devices=CPUS))


def test_variables_that_no_pattern_fits() -> None:
    with pytest.raises(StepError, match=r"No pattern fits these variables:\n  head/bias\n  head/kernel\n.*default=0"):
        build(mk.parallel.Layout({"block0": 0, "block1": 1}, devices=CPUS))


def test_nothing_was_created() -> None:
    with pytest.raises(StepError, match="No variable was created within the layout"):
        build(halves(), net=lambda: keras.Sequential([keras.layers.Dense(3)]))


def test_an_error_within_the_block_is_the_one_that_is_seen() -> None:
    with pytest.raises(ZeroDivisionError), halves():
        raise ZeroDivisionError


def test_the_strategy_is_entered_after_the_layout() -> None:
    layout = halves()
    with pytest.raises(StepError, match=r"with layout, strategy.scope\(\)"), layout.strategy().scope(), layout:
        pass


def test_a_strategy_on_other_devices() -> None:
    strategy = mk.strategy.create("mirrored", devices=CPUS)
    words = r"have the devices CPU:0, CPU:1, and.*are CPU:0\. .*layout.strategy"
    with pytest.raises(StepError, match=words), halves(), strategy.scope():
        mlp()


@pytest.mark.parametrize(
    ("rules", "names", "words"),
    [
        ({"a": 2}, CPUS, r"name 3 devices \(0 to 2\), and there are 2"),
        ({"a": 1}, ["cpu:0", "cpu:1", "cpu:2"], "for N replicas N times as many"),
        ({"a": -1}, CPUS, "'a' has the device -1"),
        ({"a": "gpu:1"}, CPUS, "'a' has the device 'gpu:1'"),
        ({"a(": 0}, CPUS, r"The pattern 'a\(' is no regular expression"),
        ({}, CPUS, "takes rules such as"),
    ],
)
def test_rules_that_cannot_be(rules: Any, names: Any, words: str) -> None:
    with pytest.raises(StepError, match=words):
        mk.parallel.Layout(rules, devices=names)


def test_a_device_that_is_not_there() -> None:
    with pytest.raises(DeviceError, match=r"(?i)cpu:9"):
        mk.parallel.Layout(HALVES, devices=["cpu:0", "cpu:9"])


def test_xla_is_refused() -> None:
    with pytest.raises(StepError, match=r"Step\(jit_compile=True\).*several devices"):
        make_loop(mlp, halves(), jit_compile=True)
    step = make_loop(mlp, halves()).step
    with pytest.raises(StepError, match=r"Loop\(jit_compile=True\).*several devices"):
        mk.train.Loop(step.strategy, step, jit_compile=True)


def test_a_step_of_ones_own_is_refused() -> None:
    """It computes on its replica's device."""

    class Own:
        def __init__(self, model: Any) -> None:
            self.model = model
            self.variables = list(model.trainable_variables)

        def build(self, strategy: Any) -> None:
            pass

        def compute(self, batch: Any) -> Any:
            pass

        def update(self, strategy: Any, sums: Any) -> Any:
            pass

    layout = halves()
    strategy = layout.strategy()
    with layout, strategy.scope():
        model = mlp()
    with pytest.raises(StepError, match="The variables of Own lie on several devices"):
        mk.train.Loop(strategy, Own(model))


def test_a_model_from_a_file(tmp_path: Any) -> None:
    """It is placed where it is loaded, and goes on."""
    loop = make_loop(cnn, halves())
    loop.fit(data(cnn), verbose=0)
    mk.train.export(loop, tmp_path / "model.keras")
    layout = halves()
    with layout, layout.strategy().scope():
        model = keras.models.load_model(tmp_path / "model.keras")
    assert devices(model)["head/kernel"] == "CPU:1"
