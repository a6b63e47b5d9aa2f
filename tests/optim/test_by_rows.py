"""Optimizers for some rows of a weight, and for weights that are not the model's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from optim_helpers import OPTIONS, gradients_of, made, named, tensors, variables_of

from mirrorkit import optim
from mirrorkit._keras import keras
from mirrorkit.optim import other_weights, slots as slots_
from mirrorkit.optim.by_rows import ByRows

# --- rows of one weight get the bits that they have where the optimizer is given all weights


o = keras.optimizers
_SHAPES = [(11, 3), (5,), (11, 3), (2, 4)]  # two tables, whose slots must not be taken for each other's
_TABLES = 0, 2
_BLOCKS = [0, 4, 9], [1, 2, 3, 5, 6, 7, 8], [10]  # every row once

_OPTIONS: list[tuple[str, dict[str, Any]]] = [
    *((cls.__name__, {}) for cls in slots_._SLOTS),
    *OPTIONS,
    ("Adam", {"learning_rate": "schedule"}),
    ("Adagrad", {"weight_decay": 0.2}),
]


def _made(name: str, options: dict[str, Any]) -> tuple[Any, list[Any]]:
    variables = variables_of(_SHAPES)
    return made(name, options, variables), variables


def _assert_same(optimizer: Any, variables: list[Any]) -> None:
    """Two updates, each row by row and all at once, from the same values; eagerly, so that no compiler rewrites."""
    weights, slots = tensors(variables), tensors(optimizer.variables)
    schedule = optim.schedule_of(optimizer)
    own_slots = 0
    for step in range(2):
        gradients = gradients_of(variables, step)
        rate = None if schedule is None else schedule(tf.constant(step))
        new_weights, new_slots = optim.functional_apply(optimizer, weights, slots, gradients, rate=rate)
        for table in _TABLES:
            for ids in _BLOCKS:
                by_rows = ByRows(optimizer, table, len(ids))
                held = [slots[place] for place in by_rows.places]
                given = [tf.gather(v, ids) if has else v for v, has in zip(held, by_rows.is_slot, strict=True)]
                rows, gradient = (tf.gather(values[table], ids) for values in (weights, gradients))
                found = by_rows(rows, given, gradient, rate)
                own = [place for place, has in zip(by_rows.places, by_rows.is_slot, strict=True) if has]
                expected = [new_weights[table], *(new_slots[place] for place in own)]
                assert not np.array_equal(found[0], rows), "the optimizer moved nothing: the test is empty"
                for whole, part in zip(expected, found, strict=True):
                    np.testing.assert_array_equal(part, tf.gather(whole, ids))
                own_slots = len(own)
        weights, slots = new_weights, new_slots
    per_weight = sum(v.shape == _SHAPES[0] for v in optimizer.variables) / len(_TABLES)
    assert own_slots == per_weight


@pytest.mark.parametrize(("name", "options"), _OPTIONS, ids=named(_OPTIONS))
def test_rows_have_the_bits_of_the_whole_weight(name: str, options: dict[str, Any]) -> None:
    _assert_same(*_made(name, options))


@pytest.mark.parametrize("excluded", [0, 1], ids=["a table", "another weight"])
def test_exclusions_from_weight_decay_hold(excluded: int) -> None:
    _assert_same(*_made("AdamW", {"weight_decay": 0.5, "excluded": [excluded]}))


@pytest.mark.parametrize(("name", "options"), _OPTIONS, ids=named(_OPTIONS))
def test_rows_that_stay_are_known(name: str, options: dict[str, Any]) -> None:
    """Tried with gradients of zero, and slots that have numbers already."""
    optimizer, variables = _made(name, options)
    weights = tensors(variables)
    held = [value + 0.7 if value.shape == _SHAPES[0] else value for value in tensors(optimizer.variables)]
    rate = tf.constant(0.5) if optim.schedule_of(optimizer) else None
    new = optim.functional_apply(optimizer, weights, held, [tf.zeros_like(one) for one in weights], rate=rate)
    pairs = [pair for old, after in zip((weights, held), new, strict=True) for pair in zip(old, after, strict=True)]
    stays = [np.array_equal(old, after) for old, after in pairs if old.shape == _SHAPES[0]]
    assert all(optim.leaves_rows_alone(optimizer, variables[table]) == all(stays) for table in _TABLES)


def test_a_table_that_does_not_decay_is_left_alone() -> None:
    """However small the decay of the other is."""
    optimizer, weights = _made("SGD", {"weight_decay": 1e-8, "excluded": [2]})
    assert [optim.leaves_rows_alone(optimizer, weights[table]) for table in _TABLES] == [False, True]


# --- an optimizer built for pieces of weights; fails when the private names of Keras move on which this stands


_OTHER_SHAPES = [(5,), (2, 4), ()]


class Unknown(keras.optimizers.schedules.LearningRateSchedule):  # type: ignore[name-defined, misc]
    """A schedule without a configuration."""

    def __call__(self, step: Any) -> Any:
        return 0.1


def _weights() -> list[Any]:
    weights = [keras.Variable(np.ones(shape), name=f"w{i}") for i, shape in enumerate(_OTHER_SHAPES)]
    with keras.name_scope("outer"):
        return [*weights, keras.Variable(np.ones(2), dtype="bfloat16", name="half")]


@pytest.mark.slow
@pytest.mark.parametrize("name", [cls.__name__ for cls in slots_._SLOTS])
@pytest.mark.parametrize("rate", [0.1, Unknown(), lambda: 0.1], ids=["number", "schedule", "function"])
def test_what_an_ordinary_one_would_have(name: str, rate: Any) -> None:
    """Paths, order, and which weight each slot is of."""
    more = {"Adam": {"amsgrad": True}, "RMSprop": {"momentum": 0.9, "centered": True}}.get(name, {})
    weights, kind = _weights(), getattr(keras.optimizers, name)
    optimizer, ordinary = kind(rate, name="same", **more), kind(rate, name="same", **more)
    ordinary.build(weights)
    twin, slots = other_weights.twin_for(
        optimizer, [optim.StandIn(tuple(w.shape), w.dtype, True, w.path) for w in weights]
    )
    numbered = [v.path for v in ordinary.variables]
    assert [s.path for s in slots if "variable" not in s.path] == [p for p in numbered if "variable" not in p]
    assert len(slots) == len(numbered)
    lists = optim.slots_of(ordinary)
    others = [v for v in ordinary.variables if not any(v is slot for of_all in lists for slot in of_all)]
    for slot, variable in zip(slots, ordinary.variables, strict=True):
        assert (others[slot.kind] if slot.weight is None else lists[slot.kind][slot.weight]) is variable
    assert [(v.shape, v.dtype) for v in twin.variables] == [(v.shape, v.dtype) for v in ordinary.variables]
    assert all(v.value.shape == () for v in twin.variables), "nothing as large as the weights"
    assert not optimizer.built


@pytest.mark.parametrize("decayed", [True, False])
def test_slots_and_decay_are_those_of_the_pieces(decayed: bool) -> None:
    """Slots have the size of a piece and its own variable has not; decay is as was said."""
    optimizer = keras.optimizers.AdamW(0.1, weight_decay=0.5)
    pieces = [optim.StandIn((6,), "float32", decayed), optim.StandIn((3,), "bfloat16", not decayed)]
    optim.build_for(optimizer, pieces)
    assert [(tuple(v.shape), v.value.shape, v.dtype) for v in optimizer.variables[2:]] == [
        *[((6,), (6,), "float32")] * 2,
        *[((3,), (3,), "bfloat16")] * 2,
    ]
    assert [v.value.shape for v in optim.trainable_variables(optimizer)] == [(), ()]
    weights = [np.ones(6, "float32"), np.ones(3, "float32")]
    weights = [keras.ops.cast(weights[0], "float32"), keras.ops.cast(weights[1], "bfloat16")]
    slots = [keras.ops.convert_to_tensor(v) for v in optimizer.variables]
    new, _ = optim.functional_apply(optimizer, weights, slots, [keras.ops.zeros_like(w) for w in weights])
    has_moved = [bool(np.any(np.asarray(keras.ops.cast(w, "float32")) != 1)) for w in new]
    assert has_moved == [decayed, not decayed]


def test_what_is_excluded_from_decay_is_known_before_it_is_built() -> None:
    weights = _weights()
    optimizer = keras.optimizers.AdamW(0.1, weight_decay=0.5)
    optimizer.exclude_from_weight_decay(var_list=[weights[0]], var_names=["half"])
    assert [optim.decays(optimizer, weight) for weight in weights] == [False, True, True, False]


def test_joined_is_what_packed_joins() -> None:
    """For a norm with the same bits."""
    weights = [keras.Variable(np.ones(n), name=f"w{n}") for n in (3, 4, 5)]
    weights.append(keras.Variable(np.ones((2, 2)), name="matrix"))
    optimizer, built = keras.optimizers.Adam(), keras.optimizers.Adam()
    built.build(weights)
    has = [[True] * 4]
    values = [weight.value for weight in weights]
    joined = optim.Joined(weights, optim.groups_of(optimizer, weights, has))
    found = [part.shape for part in joined.join(values)]
    assert found == [part.shape for part in optim.Packed(built, has).join(values)] == [(12,), (2, 2)]
    assert [part.shape for part in joined.split(joined.join(values))] == [v.shape for v in values]
