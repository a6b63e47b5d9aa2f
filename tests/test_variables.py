"""Variables under strategies: every copy is found, written, remembered and restored."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from mirrorkit import variables
from mirrorkit._keras import keras
from mirrorkit.variables import Snapshot

WHERE = [("one_device", 1), ("mirrored", 3), ("central_storage", 2)]


@pytest.fixture(params=WHERE, ids=str)
def where(request: pytest.FixtureRequest, strategy_of: Callable[..., Any]) -> tf.distribute.Strategy:
    return strategy_of(*request.param)


def _made(strategy: tf.distribute.Strategy) -> list[Any]:
    """A Keras variable, one of TensorFlow's, and one that every replica has a value of its own of."""
    with strategy.scope():
        return [
            keras.Variable([1.0, 2.0], name="of_keras"),
            tf.Variable(3, name="of_tensorflow"),
            tf.Variable(
                [0.0],
                trainable=False,
                synchronization=tf.VariableSynchronization.ON_READ,
                aggregation=tf.VariableAggregation.SUM,
            ),
        ]


def _make_differ(variable: Any) -> list[Any]:
    """Give every copy another value; returns them."""
    copies = variables.copies(variable)
    for number, copy in enumerate(copies):
        copy.assign(tf.ones_like(copy) * (10 + number))
    return [copy.numpy() for copy in copies]


def _values(variable: Any) -> list[Any]:
    return [copy.numpy() for copy in variables.copies(variable)]


def test_there_is_a_copy_for_each_replica(where: Any) -> None:
    keras_one, tensorflow_one, own = _made(where)
    mirrored = isinstance(where, tf.distribute.MirroredStrategy)
    copies = where.num_replicas_in_sync if mirrored else 1
    for variable in (keras_one, tensorflow_one):
        found = variables.copies(variable)
        assert len(found) == copies
        assert len({copy.device for copy in found}) == copies
    assert len(variables.copies(own)) == (where.num_replicas_in_sync if mirrored else len(_values(own)))
    assert variables.native(keras_one) is keras_one.value
    assert variables.native(tensorflow_one) is tensorflow_one


def test_paths_are_names_that_users_know(where: Any) -> None:
    with where.scope():
        layer = keras.layers.Dense(1, name="line")
        layer.build((None, 2))
    assert [variables.path(v) for v in layer.variables] == ["line/kernel", "line/bias"]
    assert variables.path(_made(where)[1]).startswith("of_tensorflow")


def test_assign_reaches_every_copy(where: Any) -> None:
    for variable in _made(where):
        _make_differ(variable)
        variables.assign(variable, tf.zeros_like(variables.copies(variable)[0]))
        for value in _values(variable):
            np.testing.assert_array_equal(value, np.zeros_like(value))


def test_a_snapshot_puts_each_copy_back(where: Any) -> None:
    made = _made(where)
    before = [_make_differ(variable) for variable in made]
    snapshot = Snapshot()
    assert not snapshot.holds(made[0])
    snapshot.add(made)
    assert all(map(snapshot.holds, made))
    for variable in made:
        variables.assign(variable, tf.zeros_like(variables.copies(variable)[0]))
    snapshot.add(made)  # known already: what counts is the first value
    snapshot.put_back()
    for variable, values in zip(made, before, strict=True):
        np.testing.assert_array_equal(_values(variable), values)


def test_a_snapshot_holds_a_variable_when_it_holds_all_copies(strategy_of: Any) -> None:
    variable = _made(strategy_of("mirrored", 3))[1]
    snapshot = Snapshot()
    snapshot.add(variables.copies(variable)[:2])
    assert not snapshot.holds(variable)
    snapshot.add([variable])
    assert snapshot.holds(variable)


def test_a_snapshot_finds_what_a_function_writes(where: Any) -> None:
    """Also a variable that it only writes, which `ConcreteFunction.variables` leaves out."""
    with where.scope():
        read, written = tf.Variable(1.0), tf.Variable(2.0)
    other = tf.data.Dataset.range(9).repeat()
    numbers = iter(other)

    @tf.function(autograph=False)
    def change() -> Any:
        next(numbers)  # a captured input that is no variable
        for variable in (read, written):
            for copy in variables.copies(variable):
                copy.assign(copy + 1 if variable is read else 7.0)

    snapshot = Snapshot()
    snapshot.add_captured(change.get_concrete_function())
    assert snapshot.holds(read)
    assert snapshot.holds(written)
    change()
    assert set(_values(read)) == {2.0}
    assert set(_values(written)) == {7.0}
    snapshot.put_back()
    assert set(_values(read)) == {1.0}
    assert set(_values(written)) == {2.0}


def _draws() -> list[float]:
    return [random.random(), np.random.random(), float(tf.random.get_global_generator().uniform([]))]


@pytest.mark.parametrize("fails", [False, True])
def test_unchanged_restores_variables_and_generators(where: Any, fails: bool) -> None:
    made = _made(where)
    before = [_make_differ(variable) for variable in made]
    with where.scope():
        late = tf.Variable(5.0)
    random.seed(1), np.random.seed(1), tf.random.get_global_generator().reset_from_seed(1)
    expected = _draws()
    random.seed(1), np.random.seed(1), tf.random.get_global_generator().reset_from_seed(1)

    def run() -> None:
        with variables.unchanged(made) as snapshot:
            snapshot.add([late])
            for variable in [*made, late]:
                variables.assign(variable, tf.zeros_like(variables.copies(variable)[0]))
            assert _draws() == expected
            if fails:
                raise RuntimeError("within")

    if fails:
        with pytest.raises(RuntimeError, match="within"):
            run()
    else:
        run()
    for variable, values in zip([*made, late], [*before, [5.0] * len(variables.copies(late))], strict=True):
        np.testing.assert_array_equal(_values(variable), values)
    assert _draws() == expected


def test_unchanged_needs_no_global_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> Any:
        raise RuntimeError("op determinism")

    monkeypatch.setattr(tf.random, "get_global_generator", none)
    variable = tf.Variable(1.0)
    with variables.unchanged([variable]):
        variable.assign(2.0)
    assert variable.numpy() == 1.0
