"""Rules and variables that do not fit each other are named."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from executed import executed
from placed_nets import HALVES, data, halves, make_loop, mlp

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.errors import DeviceError, StepError
from mirrorkit.train.step.devices import are_placed
from mirrorkit.variables import copies

CPUS = ["cpu:0", "cpu:1"]
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


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
    found = devices(build(mk.parallel.Layout({"head": 1}, devices=CPUS, default=0)))
    assert {path for path, device in found.items() if device == "CPU:1"} == {"head/kernel", "head/bias"}


@pytest.mark.parametrize(
    ("rules", "net", "words"),
    [
        ({**HALVES, "block7": 1}, mlp, r"No variable fits 'block7'.*\n.*  block0_dense/bias\n"),
        ({"block0": 0, "block1": 1}, mlp, r"No pattern fits .*\n  head/bias\n  head/kernel\n"),
        (HALVES, lambda: keras.Sequential([keras.layers.Dense(3)]), "No variable was created"),
        ({"a": 1}, lambda: keras.optimizers.Adam().build([]), "No variable was created"),  # only a model's count
    ],
    ids=["a pattern fits nothing", "no pattern fits", "nothing was created", "nothing but a learning rate"],
)
def test_rules_that_do_not_fit_the_variables(rules: Any, net: Any, words: str) -> None:
    with pytest.raises(StepError, match=words):
        build(mk.parallel.Layout(rules, devices=CPUS), net)


def test_the_strategy_is_entered_after_the_layout() -> None:
    layout = halves()
    with pytest.raises(StepError, match=r"with layout, strategy.scope\(\)"), layout.strategy().scope(), layout:
        pass


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("mirrored", r"CPU:0, /device:CPU:1, .*layout.strategy"),
        ("central_storage", "found CentralStorageStrategy"),
    ],
)
def test_another_strategy(kind: str, words: str) -> None:
    strategy = mk.strategy.create(kind, devices=CPUS)
    with pytest.raises(StepError, match=words), halves(), strategy.scope():
        mlp()


@pytest.mark.parametrize(
    ("rules", "names", "words"),
    [
        ({"a": 2}, CPUS, "name 3 devices"),
        ({"a": 1}, ["cpu:0", "cpu:1", "cpu:2"], "N times as many"),
        ({"a": -1}, CPUS, "'a' has the device -1"),
        ({"a": "gpu:1"}, CPUS, "'a' has the device 'gpu:1'"),
        ({"block[": 1}, CPUS, r"'block\[' is not a regular expression: unterminated"),
        ({}, CPUS, "takes rules such as"),
        (HALVES, ["cpu:0", "cpu:9"], r"(?i)cpu:9"),
    ],
)
def test_rules_that_cannot_be(rules: Any, names: Any, words: str) -> None:
    with pytest.raises(DeviceError if rules is HALVES else StepError, match=words):
        mk.parallel.Layout(rules, devices=names)


class Subclassed(keras.Model):
    """Keras gives its variables their values after their paths are gone."""

    def __init__(self) -> None:
        super().__init__(name="own")
        self.first = keras.layers.Dense(4, name="block0")
        self.second = keras.layers.Dense(3, name="block1")

    def call(self, x: Any) -> Any:
        return self.second(self.first(x))


def called() -> Any:
    model = Subclassed()
    model(np.ones((2, 12), "float32"))
    return model


def test_a_subclassed_model_by_its_paths() -> None:
    found = devices(build(mk.parallel.Layout({"block0": 0, "block1": 1}, devices=CPUS), called))
    assert {path for path, device in found.items() if device == "CPU:1"} == {"own/block1/kernel", "own/block1/bias"}


def test_every_replicas_copy_goes_by_the_same_path() -> None:
    """TensorFlow calls a further copy head/kernel/replica_1."""
    layout = mk.parallel.Layout({"^head/kernel$": 1, "1": 0}, default=0, devices=[f"cpu:{i}" for i in range(4)])
    for variable in build(layout).trainable_variables:
        expected = ["CPU:1", "CPU:3"] if variable.path == "head/kernel" else ["CPU:0", "CPU:2"]
        assert [copy.device[-5:] for copy in copies(variable)] == expected


def test_a_model_of_which_a_part_was_built_later() -> None:
    layout = mk.parallel.Layout({"block0": 0, "bias": 1}, devices=CPUS, default=0)
    strategy = layout.strategy()
    with layout, strategy.scope():
        model = Subclassed()
        model.first.build((None, 12))
    with strategy.scope():
        model(np.ones((2, 12), "float32"))
        step = mk.train.Step(model, keras.optimizers.SGD(0.1), loss="mse")
    with pytest.raises(StepError, match=r"not these:\n.*block1/bias\n"):
        mk.train.Loop(strategy, step)


def test_weights_that_are_all_on_one_other_device() -> None:
    """Where a frozen half lies elsewhere, and where nothing does: the computation follows."""

    def run(rules: Any, frozen: bool) -> Any:
        layout = mk.parallel.Layout(rules, devices=CPUS, default=1)
        strategy = layout.strategy()
        with layout, strategy.scope():
            model = mlp()
            for layer in model.layers:
                layer.trainable = not (frozen and "block0" in layer.name)
            step = mk.train.Step(model, keras.optimizers.Adam(), loss=LOSS)
        mk.train.Loop(strategy, step).fit(data(mlp, count=32), verbose=0)

    found = executed(lambda: run(HALVES, frozen=True))
    assert (found["CPU:0", "forward"], found["CPU:1", "forward"]) == (1, 2)
    found = executed(lambda: run({"kernel": 1}, frozen=False))
    assert (found["CPU:0", "forward"], found["CPU:1", "forward"]) == (0, 3)


def test_xla_is_refused() -> None:
    with pytest.raises(StepError, match=r"Step\(jit_compile=True\)"):
        make_loop(mlp, halves(), jit_compile=True)


def test_a_step_of_ones_own_is_refused() -> None:
    """It computes on its replica's device."""
    layout = halves()
    model = build(layout)
    methods = dict.fromkeys(("build", "compute", "update"), lambda *args: None)
    with pytest.raises(StepError, match="variables of SimpleNamespace"):
        mk.train.Loop(layout.strategy(), SimpleNamespace(**methods, variables=model.trainable_variables))


def test_a_variable_outside_of_the_scope_has_no_copies_and_lies_nowhere_that_a_layout_would_know() -> None:
    strategy = mk.strategy.create("mirrored", devices=CPUS)
    with strategy.scope():
        inside = tf.Variable(1.0)
    assert not are_placed(strategy, [inside, tf.Variable(1.0)])
