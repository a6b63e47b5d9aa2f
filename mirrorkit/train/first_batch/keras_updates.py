"""Whether a user's optimizer does as a function of values, as an update calls it, what its `apply_gradients` does."""

from __future__ import annotations

import logging

import numpy as np
import tensorflow as tf

from mirrorkit._keras import keras
from mirrorkit._types import KerasOptimizer
from mirrorkit.optim import Packed, functional_apply, trainable_variables
from mirrorkit.train.first_batch.compared import LARGEST, apart, shown

_log = logging.getLogger("mirrorkit")

_UPDATES = 12  # what one leaves behind shows in the next, or where it counts them
_SIDE = 3  # of weights, at most; and so many alike, which are joined


def update_fault(optimizer: KerasOptimizer) -> str | None:
    """Return how both differ on small weights of the ranks and names that the optimizer has.

    Keras's own optimizers are compared by this library's tests. One that its own configuration does not make again is
    not compared.
    """
    kind = type(optimizer)
    if kind.__module__.startswith("keras."):
        return None
    names = {tuple(min(size, _SIDE) for size in weight.shape): weight.name for weight in trainable_variables(optimizer)}
    shapes = [shape for shape in names for _ in range(_SIDE)]
    rng = np.random.default_rng(0)
    first, *gradients = ([rng.normal(size=shape).astype("float32") for shape in shapes] for _ in range(1 + _UPDATES))
    try:
        ours, theirs = (kind.from_config(optimizer.get_config()) for _ in range(2))
        own, kept = ([keras.Variable(value, name=names[value.shape]) for value in first] for _ in (ours, theirs))
        ours.build(own)
        values = _after(ours, gradients)
        for of_update in gradients:
            theirs.apply_gradients(zip(map(tf.constant, of_update), kept, strict=True))
    except Exception as error:  # whatever a user's optimizer may raise, made from its configuration alone
        _log.info(
            "%s could not be compared with its apply_gradients: %s: %s", kind.__name__, type(error).__name__, error
        )
        return None
    for value, variable in zip(values, kept, strict=True):
        if apart(value, variable.value) > LARGEST:
            return (
                f"{_UPDATES} updates of {kind.__name__} move weights of the shape {list(variable.shape)} to "
                f"{shown(value)}, its apply_gradients to {shown(variable.value)}: it keeps something where an update "
                "does not see it. Keep it in add_variable or add_variable_from_reference."
            )
    return None


def _after(optimizer: KerasOptimizer, gradients: list[list[np.ndarray]]) -> list[tf.Tensor]:
    """Return the weights after updates from these gradients, made as `ReplicatedOptimizer` makes them."""
    variables = trainable_variables(optimizer), optimizer.variables
    weights, slots = ([tf.convert_to_tensor(v.value) for v in group] for group in variables)
    packed = Packed(optimizer, [[True] * len(weights)])
    for of_update in gradients:
        given = packed.join(weights), packed.join_slots(slots), packed.join([*map(tf.constant, of_update)])
        new, new_slots = functional_apply(packed.optimizer, *given)
        weights, slots = packed.split(new), packed.split_slots(new_slots)
    return weights
