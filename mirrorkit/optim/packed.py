"""Join small weights that an optimizer treats alike: one operation on all of them instead of one on each.

An optimizer's arithmetic is three to fifteen operations for each weight, and most weights are small (biases, scales of
normalisation): what they cost is the launch of many operations. Here those that agree in all dimensions but the
first are concatenated along it, the optimizer's own `update_step` runs once on the joined values, and the results are
split again. All of it takes place in a pure function of tensors: variables, slots and checkpoints stay as they are.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import TypeVar

import tensorflow as tf

from mirrorkit._types import KerasOptimizer, KerasVariable
from mirrorkit.optim.functional import trainable_variables
from mirrorkit.optim.other_weights import StandIn, decays, twin_for
from mirrorkit.optim.slots import places_of, treats_numbers_alike

# In bytes. A larger weight stays by itself: copying it takes longer than the operations that are saved. Processor
# time of ResNet-56's update with SGD, of what it was without joining: 0.89 at 4 KiB, 0.81 at 16, 0.90 at 40. For
# ResNet-20 the time was half as long again at 256.
_SMALL = 16 * 2**10
_FEWEST = 3  # weights in a group: joining and splitting two takes as many operations as it saves

T = TypeVar("T")


class Joined:
    """Weights, or other variables, in groups of which each is joined to one.

    Args:
        weights: the weights.
        groups: which are joined, by their indices; one that stays by itself is a group of one, as all do by default.
    """

    def __init__(self, weights: Sequence[KerasVariable], groups: list[list[int]] | None = None) -> None:
        self._sizes = [weight.shape[0] if weight.ndim else 1 for weight in weights]
        self._groups = groups or [[i] for i in range(len(weights))]

    def group_of(self, weight: int) -> int:
        """Return the place, among the joined ones, of the group of a weight."""
        return next(place for place, group in enumerate(self._groups) if weight in group)

    def join(self, values: Sequence[T]) -> list[T]:
        """Concatenate the values of each group; there is one for each weight, or None for all weights of a group."""
        groups = [[values[i] for i in group] for group in self._groups]
        return [parts[0] if len(parts) == 1 or parts[0] is None else tf.concat(parts, 0) for parts in groups]

    def split(self, joined: Sequence[tf.Tensor | None]) -> list[tf.Tensor | None]:
        """Undo `join`."""
        values: dict[int, tf.Tensor | None] = {}
        for value, group in zip(joined, self._groups, strict=True):
            alone = value is None or len(group) == 1
            parts = [value] * len(group) if alone else tf.split(value, [self._sizes[i] for i in group])
            values.update(zip(group, parts, strict=True))
        return [values[i] for i in range(len(values))]


class Packed(Joined):
    """A built optimizer with its weights in groups; needed only while a function is traced, but made outside of it.

    Attributes:
        optimizer: what `functional_apply` takes together with joined values: where weights are joined, a twin of the
            given optimizer that is built for the joined ones.
        slots: joins values of the given optimizer's variables to those of the twin's, in their order.

    Args:
        optimizer: a built Keras optimizer, which is left alone. Where its arithmetic looks at whole weights, or is not
            known to look at single numbers only, every weight stays by itself.
        has_gradient: for each part of the loss, and in it for each weight, whether there is a gradient. Weights that
            differ in it are not joined, and those without any are left to Keras, which warns of them by name.
        devices: for each weight its device, where they differ; weights of different devices are not joined.
        elsewhere: the numbers of weights that are updated elsewhere: here they have one row.
    """

    def __init__(
        self,
        optimizer: KerasOptimizer,
        has_gradient: Sequence[Sequence[bool]],
        devices: Sequence[Hashable] | None = None,
        elsewhere: Sequence[int] = (),
    ) -> None:
        self.optimizer = optimizer
        weights, variables = trainable_variables(optimizer), optimizer.variables
        groups = groups_of(optimizer, weights, has_gradient, devices, elsewhere)
        slots, others = places_of(optimizer)  # others: iterations, learning rate
        # Only where the others are scalars: averages of `use_ema`, or a slot of a later Keras, are not.
        if not elsewhere and (len(groups) == len(weights) or any(variables[place].ndim for place in others)):
            super().__init__(weights)
            self.slots = Joined(variables)
            return
        super().__init__(weights, groups)
        stand_ins = []
        for group in groups:
            first = weights[group[0]]
            rows = 1 if group[0] in elsewhere else sum(self._sizes[i] for i in group)
            shape = (rows, *first.shape[1:]) if first.ndim else ()
            stand_ins.append(StandIn(shape, first.dtype, decays(optimizer, first), first.path, first.constraint))
        self.optimizer, known = twin_for(optimizer, stand_ins)
        # For each variable of the twin the places of those that it stands for.
        of_twin = [
            [others[slot.kind]] if slot.weight is None else [slots[slot.kind][i] for i in groups[slot.weight]]
            for slot in known
        ]
        self.slots = Joined(variables, of_twin)


def groups_of(
    optimizer: KerasOptimizer,
    weights: list[KerasVariable],
    has_gradient: Sequence[Sequence[bool]],
    devices: Sequence[Hashable] | None = None,
    elsewhere: Sequence[int] = (),
) -> list[list[int]]:
    """Return which weights are joined, by their indices; the optimizer need not be built. See `Packed`."""
    norms = optimizer.clipnorm or optimizer.global_clipnorm  # of each weight, or added up in the order of the weights
    if not treats_numbers_alike(optimizer) or norms:
        return [[i] for i in range(len(weights))]
    groups: dict[Hashable, list[int]] = {}
    for i, weight in enumerate(weights):
        has = tuple(of_part[i] for of_part in has_gradient)
        small = math.prod(weight.shape) * tf.as_dtype(weight.dtype).size <= _SMALL
        key = (weight.dtype, tuple(weight.shape[1:]), decays(optimizer, weight), has, devices and devices[i])
        alone = i in elsewhere or not small or not weight.ndim or not any(has) or weight.constraint is not None
        groups.setdefault(i if alone else key, []).append(i)
    return [part for group in groups.values() for part in ([group] if len(group) >= _FEWEST else [[i] for i in group])]
