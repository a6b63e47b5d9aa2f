"""An optimizer built for pieces of weights; fails when the private names of Keras move on which this stands."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mirrorkit import optim
from mirrorkit._keras import keras
from mirrorkit.optim import other_weights
from mirrorkit.optim import slots as slots_

_SHAPES = [(5,), (2, 4), ()]


class Unknown(keras.optimizers.schedules.LearningRateSchedule):  # type: ignore[name-defined, misc]
    """A schedule without a configuration."""

    def __call__(self, step: Any) -> Any:
        return 0.1


def _weights() -> list[Any]:
    weights = [keras.Variable(np.ones(shape), name=f"w{i}") for i, shape in enumerate(_SHAPES)]
    with keras.name_scope("outer"):
        return [*weights, keras.Variable(np.ones(2), dtype="bfloat16", name="half")]


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
    lists = list(optim.slots_by_name(ordinary).values())
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
    joined = optim.Joined.of(optimizer, weights, has)
    found = [part.shape for part in joined.join(values)]
    assert found == [part.shape for part in optim.Packed(built, has).join(values)] == [(12,), (2, 2)]
    assert [part.shape for part in joined.split(joined.join(values))] == [v.shape for v in values]
