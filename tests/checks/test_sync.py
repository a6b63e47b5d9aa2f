"""in_sync and repair: what differs between replicas is found, named and put right."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.checks import sync
from mirrorkit.errors import StepError


def change(strategy: Any, variable: Any, replica: int, index: Any, value: Any) -> None:
    """Set one element of one replica's copy."""
    copy = strategy.experimental_local_results(variable.value)[replica]
    array = copy.numpy()
    array[index] = value
    copy.assign(array)


def bits(strategy: Any, variables: Any) -> list[list[bytes]]:
    return [[c.numpy().tobytes() for c in strategy.experimental_local_results(v.value)] for v in variables]


@pytest.mark.parametrize("where", [("one_device", 1), ("central_storage", 2)], ids=str)
def test_one_copy_is_in_sync(where: Any, strategy_of: Callable[..., Any]) -> None:
    strategy = strategy_of(*where)
    with strategy.scope():
        variable = tf.Variable(1.0)
    for look in (mk.checks.in_sync, mk.checks.repair):
        report = look(strategy, [variable])
        assert report
        assert str(report) == "There is one copy of the 1 variables: nothing to compare"


def test_the_report_names_the_first_variable_the_replica_and_by_how_much(strategy_of: Callable[..., Any]) -> None:
    strategy = strategy_of("mirrored", 4)
    with strategy.scope():
        layer = keras.layers.Dense(6, kernel_initializer="ones", name="first")
        layer.build([None, 4])
    kernel, bias = layer.variables
    change(strategy, bias, 1, 2, 0.25)
    change(strategy, kernel, 3, (0, 0), 1.5)
    change(strategy, kernel, 3, (2, 5), 0.75)
    report = mk.checks.in_sync(strategy, layer)
    assert not report
    assert report.differing == (kernel.path, bias.path)
    assert report.first == mk.checks.Difference(kernel.path, 3, 2, 24, 0.5)
    assert (report.replicas, report.variables) == (4, 2)
    for part in ("2 of 2 variables", "first/kernel' on replica 3: 2 of 24 elements", "at most 0.5"):
        assert part in str(report)


@pytest.mark.slow
def test_differences_that_are_no_ordinary_numbers(two_replicas: Any) -> None:
    strategy, step = two_replicas
    bias = step.model.layers[0].bias
    for value, largest in ((np.nan, np.inf), (np.inf, np.inf), (-0.0, 0.0), (1e-30, 1e-30)):
        change(strategy, bias, 1, 0, value)
        first = mk.checks.in_sync(strategy, step).first
        assert first is not None, value
        assert (first.variable, first.elements) == (bias.path, 1)
        assert first.largest == pytest.approx(largest, rel=1e-3, abs=0)


def test_variables_of_other_dtypes(strategy_of: Callable[..., Any]) -> None:
    strategy = strategy_of("mirrored", 2)
    values = {tf.bool: True, tf.uint8: 3, tf.int64: 2**40, tf.float16: 1.5, tf.bfloat16: 1.5, tf.float64: 1.5}
    with strategy.scope():
        variables = [tf.Variable(value, dtype=dtype, trainable=False) for dtype, value in values.items()]
    assert mk.checks.in_sync(strategy, variables)
    for variable in variables:
        strategy.experimental_local_results(variable)[1].assign(tf.zeros([], variable.dtype))
    report = mk.checks.repair(strategy, variables)
    assert report.differing == tuple(variable.name for variable in variables)
    assert report.first == mk.checks.Difference(variables[0].name, 1, 1, 1, 1.0)
    for variable, value in zip(variables, values.values(), strict=True):
        assert [copy.numpy() for copy in strategy.experimental_local_results(variable)] == [value] * 2


def test_repair_copies_replica_0_and_leaves_the_rest(strategy_of: Callable[..., Any]) -> None:
    strategy = strategy_of("mirrored", 4)
    with strategy.scope():
        variables = [keras.Variable(value, dtype=dtype) for value, dtype in ([[1.0] * 4, "float32"], [[1, 2], "int32"])]
        variables.append(keras.Variable([[5.0, 6.0]]))
    before = bits(strategy, variables)
    for variable in variables[:2]:
        change(strategy, variable, 2, 1, 7)
    report = mk.checks.repair(strategy, variables)
    assert len(report.differing) == 2  # what was found before
    assert bits(strategy, variables) == before
    change(strategy, variables[0], 0, 1, 9)  # replica 0 is right by definition
    assert mk.checks.repair(strategy, variables).first.largest > 1
    assert [copy.numpy()[1] for copy in strategy.experimental_local_results(variables[0].value)] == [9.0] * 4


@pytest.mark.slow
def test_models_optimizers_and_lists_are_checked_too(two_replicas: Any) -> None:
    strategy, step = two_replicas
    slot = step.optimizer.variables[-1]
    change(strategy, slot, 1, 0, 7)
    assert mk.checks.in_sync(strategy, step.model)
    for of in (step, step.optimizer, [slot]):
        assert mk.checks.in_sync(strategy, of).differing == (slot.path,)


def test_values_are_fetched_only_where_checksums_differ(two_replicas: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    strategy, step = two_replicas
    looked_at: list[str] = []
    original = sync.Replicas._difference
    monkeypatch.setattr(sync.Replicas, "_difference", lambda self, v: looked_at.append(v.path) or original(self, v))
    assert mk.checks.in_sync(strategy, step)
    assert looked_at == []
    change(strategy, step.variables[3], 1, 0, 7)
    change(strategy, step.variables[4], 1, 0, 7)
    assert not mk.checks.in_sync(strategy, step)
    assert looked_at == [step.variables[3].path]


def test_a_check_in_a_loop_compiles_once_and_keeps_nothing_alive(
    make_step: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    strategy, step = make_step()
    compiled: list[Any] = []
    original = sync.TraceOnce
    monkeypatch.setattr(sync, "TraceOnce", lambda pure: compiled.append(pure) or original(pure))
    for _ in range(3):
        assert mk.checks.in_sync(strategy, step)
    replicas = sync.replicas_of(strategy, step)
    assert len(compiled) == 1
    compiled.clear()
    dead, also_dead = weakref.ref(step), weakref.ref(replicas)
    del step, replicas
    gc.collect()
    assert dead() is None
    assert also_dead() is None


def test_what_cannot_be_compared(two_replicas: Any, strategy_of: Callable[..., Any]) -> None:
    strategy, step = two_replicas
    with pytest.raises(StepError, match=r"first/kernel' .*MirroredStrategy"):
        mk.checks.in_sync(strategy_of("mirrored", 4), step)
    with pytest.raises(StepError, match="in Sequential"):
        mk.checks.in_sync(strategy, keras.Sequential())
    with pytest.raises(StepError, match="in str"):
        mk.checks.in_sync(strategy, "model")
