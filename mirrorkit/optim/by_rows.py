"""A built Keras optimizer as a function of some rows of one weight, for weights too large to be copied."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import tensorflow as tf

from mirrorkit._keras import keras
from mirrorkit._types import KerasOptimizer, KerasVariable
from mirrorkit.optim.functional import functional_apply, trainable_variables
from mirrorkit.optim.other_weights import StandIn, decays, twin_for
from mirrorkit.optim.slots import places_of


class ByRows:
    """The arithmetic of one weight's update, for so many of its rows; made outside of a traced function.

    Attributes:
        places: the places of the optimizer's variables that it takes, in `optimizer.variables`.
        is_slot: for each of them whether it is a slot of the weight; the others are scalars, such as the learning rate.

    Args:
        optimizer: a built optimizer that treats all numbers of a weight alike.
        weight: the weight, by its number.
        rows: how many rows it is given.
    """

    def __init__(self, optimizer: KerasOptimizer, weight: int, rows: int) -> None:
        of = trainable_variables(optimizer)[weight]
        self._twin, known = twin_for(
            optimizer, [StandIn((rows, *of.shape[1:]), of.dtype, decays(optimizer, of), of.path)]
        )
        slots, others = places_of(optimizer)
        self.is_slot = [slot.weight is not None for slot in known]
        self.places = [others[slot.kind] if slot.weight is None else slots[slot.kind][weight] for slot in known]

    def __call__(
        self, rows: tf.Tensor, slots: Sequence[tf.Tensor], gradient: tf.Tensor, rate: tf.Tensor | None
    ) -> list[tf.Tensor]:
        """Return the new rows of the weight, and of each of its slots.

        Args:
            rows: the weight's, [rows, ...].
            slots: values of what `places` says: rows of the slots, and the other variables.
            gradient: [rows, ...].
            rate: as of `functional_apply`.
        """
        new, new_slots = functional_apply(self._twin, [rows], slots, [gradient], rate=rate)
        return [*new, *itertools.compress(new_slots, self.is_slot)]


def leaves_rows_alone(optimizer: KerasOptimizer, weight: KerasVariable) -> bool:
    """Return whether rows of a weight, and their slots, stay the same to the bit where the gradient is zero.

    With momentum, moving averages or weight decay every row changes in every step.
    """
    kind = type(optimizer)
    is_still = kind is keras.optimizers.Adagrad or (kind is keras.optimizers.SGD and not optimizer.momentum)
    return is_still and not (optimizer.weight_decay and decays(optimizer, weight))
