"""Build a Keras optimizer for other weights than the model's: joined ones, or pieces of them.

Keras has no public way to give an optimizer slots of another shape than the weights'.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow as tf

from mirrorkit import private
from mirrorkit._keras import keras
from mirrorkit._types import KerasOptimizer, KerasVariable
from mirrorkit.optim.slots import slots_of
from mirrorkit.variables import native


class StandIn(NamedTuple):
    """What an optimizer is to know of a weight."""

    shape: tuple[int, ...]
    dtype: str
    decays: bool  # whether weight decay applies to it
    path: str = "stand_in"  # after which Keras names its slots
    constraint: Callable[[KerasVariable], tf.Tensor] | None = None


class Slot(NamedTuple):
    """A variable of an optimizer."""

    path: str
    kind: int  # which of the optimizer's lists of slots it is in; for another variable its place among the others
    weight: int | None  # which weight it belongs to; None for another variable, such as the learning rate


def decays(optimizer: KerasOptimizer, weight: KerasVariable) -> bool:
    """Return whether the optimizer's weight decay applies to a weight; the optimizer need not be built."""
    if hasattr(optimizer, "_is_excluded_from_weight_decay"):  # from Keras 3.16 on
        return not optimizer._is_excluded_from_weight_decay(weight)
    copy = _with(optimizer, _exclude_from_weight_decay_cache={})  # the optimizer would remember what it is asked
    return bool(copy._use_weight_decay(native(weight)))  # as Keras does: its name is the path


def build_for(optimizer: KerasOptimizer, weights: Sequence[StandIn]) -> None:
    """Build an optimizer whose slots have these shapes; in its strategy's scope.

    `functional_apply` then takes values of these shapes in place of the weights. Nothing of their size is created but
    the slots: what names a weight has one number.
    """
    variables = [_variable(weight) for weight in weights]
    for variable, weight in zip(variables, weights, strict=True):
        _set_shape(variable, weight.shape)
    _build(optimizer, variables, weights)


def twin_for(optimizer: KerasOptimizer, weights: Sequence[StandIn]) -> tuple[KerasOptimizer, list[Slot]]:
    """Build another optimizer of the same configuration, of which nothing but the shapes is as large as the weights.

    Outside of any scope.

    Returns:
        The optimizer, for `functional_apply`, and what each of its variables is, in their order.
    """
    config = _with(optimizer, _learning_rate=None).get_config()  # a schedule of the user's may have none
    has_rate = isinstance(optimizer._learning_rate, keras.Variable)  # a schedule or a function is no variable
    twin = type(optimizer)(**{**config, "learning_rate": 0.5 if has_rate else lambda: 0.5})
    with tf.device("CPU:0"):
        _build(twin, [_variable(weight) for weight in weights], weights)
    if not has_rate:
        twin._learning_rate = optimizer._learning_rate
    lists = slots_of(twin)
    places = {id(slot): (kind, i) for kind, of_all in enumerate(lists) for i, slot in enumerate(of_all)}
    for of_all in (twin._trainable_variables, *lists):
        for variable, weight in zip(of_all, weights, strict=True):
            _set_shape(variable, weight.shape)
    others = itertools.count()
    found = []
    for variable in twin.variables:
        kind, number = places.get(id(variable), (None, None))
        found.append(Slot(variable.path, next(others) if kind is None else kind, number))
    return twin, found


def _build(optimizer: KerasOptimizer, variables: list[KerasVariable], weights: Sequence[StandIn]) -> None:
    optimizer.build(variables)
    known = {optimizer._var_key(v): weight.decays for v, weight in zip(variables, weights, strict=True)}
    # The first is where Keras looks up to 3.15, the second where newer ones do.
    vars(optimizer).update(_exclude_from_weight_decay_cache=known, _weight_decay_by_var_key=known)
    if any(optimizer._use_weight_decay(v) != weight.decays for v, weight in zip(variables, weights, strict=True)):
        private.tell_missing("a built optimizer._weight_decay_by_var_key")


def _variable(weight: StandIn) -> KerasVariable:
    """Make a variable of one number."""
    variable = keras.Variable("zeros", shape=(), dtype=weight.dtype, trainable=False, name="stand_in")
    variable._path = weight.path
    variable.constraint = weight.constraint
    return variable


def _set_shape(variable: KerasVariable, shape: tuple[int, ...]) -> None:
    variable._shape, variable._ndim = shape, len(shape)


def _with(optimizer: KerasOptimizer, **attributes: object) -> KerasOptimizer:
    """Return a copy with other attributes, which Keras does not track."""
    copy = object.__new__(type(optimizer))
    vars(copy).update(vars(optimizer), **attributes)
    return copy
