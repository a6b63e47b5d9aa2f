"""A plugin of pytest: every update of a Keras optimizer is computed by `mk.optim.functional_apply`, then assigned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import recorder
import tensorflow as tf

from mirrorkit import optim
from mirrorkit._keras import keras
from mirrorkit.optim import trainable_variables

_BASE = next(cls for cls in keras.optimizers.Optimizer.__mro__ if cls.__name__ == "BaseOptimizer")
_apply = _BASE.apply


def apply(self: Any, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
    """In the place of `BaseOptimizer.apply`."""
    if recorder.is_inside():
        return _apply(self, grads, trainable_variables)
    grads, of = list(grads), None if trainable_variables is None else list(trainable_variables)
    if reason := _reason(self, of or []):
        recorder.beside(reason)
        return _apply(self, grads, of)
    if not self.built and of:
        self.build(of)
    if not self.built:
        return _apply(self, grads, of)  # which says that it is not built
    _assign(self, grads, of)
    recorder.went_through()
    return None


def _reason(optimizer: Any, variables: Sequence[Any]) -> str:
    """Say why an update is not for `functional_apply`; empty where it is."""
    if optimizer.gradient_accumulation_steps:
        return "it sets `gradient_accumulation_steps`, which a step refuses"
    if hasattr(optimizer.assign, "mock"):
        return "it counts the writes of rows into a variable; `functional_apply` does not write into variables"
    if not all(isinstance(variable, keras.Variable) for variable in variables):
        return "it trains a plain `tf.Variable`; the weights of Keras models are Keras variables"
    return ""


def _assign(optimizer: Any, grads: Sequence[Any], of: Sequence[Any] | None) -> None:
    weights, slots = trainable_variables(optimizer), optimizer.variables
    values = [[tf.convert_to_tensor(variable) for variable in variables] for variables in (weights, slots)]
    dense = [None if grad is None else tf.convert_to_tensor(grad) for grad in grads]  # as a step sends them
    with recorder.inside():
        new_weights, new_slots = optim.functional_apply(optimizer, *values, dense, of=of)
    for variable, new in zip([*weights, *slots], [*new_weights, *new_slots], strict=True):
        variable.assign(new)


_BASE.apply = apply
