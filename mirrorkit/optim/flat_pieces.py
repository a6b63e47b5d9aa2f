"""Build a Keras optimizer for pieces of the weights: flat vectors, of which each replica holds another part.

Keras has no public way to give an optimizer slots of another shape than the weights'. This file uses private Keras
names for that; `tests/optim/test_flat_pieces.py` fails when they move.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from mirrorkit._keras import keras
from mirrorkit._types import KerasOptimizer, KerasVariable
from mirrorkit.optim.packed import slots_by_name


class FlatPiece(NamedTuple):
    """A flat vector that stands for several weights which the optimizer treats alike."""

    size: int
    dtype: str
    decays: bool  # whether weight decay applies to it


class Slot(NamedTuple):
    """A variable as an optimizer would have it that was built for the weights themselves."""

    path: str
    kind: int  # which of the optimizer's lists of slots it is in; for another variable its place among the others
    weight: int | None  # which weight it belongs to; None for another variable, such as the learning rate


def decays(optimizer: KerasOptimizer, weight: KerasVariable) -> bool:
    """Return whether the optimizer's weight decay applies to a weight; the optimizer need not be built."""
    return bool(optimizer._use_weight_decay(weight))


def build_for_pieces(optimizer: KerasOptimizer, pieces: Sequence[FlatPiece]) -> None:
    """Build an optimizer whose slots have the sizes of the pieces; in its strategy's scope.

    `functional_apply` then takes the values of pieces in place of weights. Nothing of a piece's size is created but the
    slots: its own variable, which only names it, has one number.
    """
    variables = []
    for i, piece in enumerate(pieces):
        variable = keras.Variable("zeros", shape=(), dtype=piece.dtype, trainable=False, name=f"piece_{i}")
        variable._shape, variable._ndim = (piece.size,), 1
        variables.append(variable)
    optimizer.build(variables)
    for variable, piece in zip(variables, pieces, strict=True):
        decays(optimizer, variable)  # which remembers what it finds: nothing excludes a piece
        optimizer._exclude_from_weight_decay_cache[optimizer._var_key(variable)] = piece.decays


def ordinary_slots(optimizer: KerasOptimizer, weights: Sequence[KerasVariable]) -> list[Slot]:
    """Return what `optimizer.variables` would be, in its order, of one like it that was built for the weights.

    Outside of any scope.
    """
    config = _without_rate(optimizer).get_config()
    has_rate = isinstance(optimizer._learning_rate, keras.Variable)  # a schedule or a function is no variable
    twin = type(optimizer)(**{**config, "learning_rate": 0.5 if has_rate else lambda: 0.5})
    with tf.device("CPU:0"):
        twin.build([_with_path(weight) for weight in weights])
    lists = slots_by_name(twin).values()
    places = {id(slot): (kind, i) for kind, of_all in enumerate(lists) for i, slot in enumerate(of_all)}
    others = itertools.count()
    found = []
    for variable in twin.variables:
        kind, weight = places.get(id(variable), (None, None))
        found.append(Slot(variable.path, next(others) if kind is None else kind, weight))
    return found


def _without_rate(optimizer: KerasOptimizer) -> KerasOptimizer:
    """Return a copy for its configuration only: a schedule of the user's may not have one."""
    copy = object.__new__(type(optimizer))
    vars(copy).update(vars(optimizer), _learning_rate=None)
    return copy


def _with_path(weight: KerasVariable) -> Any:
    """Make a variable of one number with the path of a weight, after which Keras names its slots."""
    variable = keras.Variable("zeros", shape=(), dtype=weight.dtype, trainable=False, name="weight")
    variable._path = weight.path
    return variable
