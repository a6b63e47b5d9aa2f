"""Join small weights that an optimizer treats alike: one operation on all of them instead of one on each.

An optimizer's arithmetic is three to fifteen operations for each weight, and most weights are small (biases, scales of
normalisation): what they cost is the launch of many operations. Here those that agree in all dimensions but the
first are concatenated along it, the optimizer's own `update_step` runs once on the joined values, and the results are
split again. All of it takes place in a pure function of tensors: variables, slots and checkpoints stay as they are.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

import tensorflow as tf

from mirrorkit._keras import keras
from mirrorkit._types import KerasOptimizer, KerasVariable
from mirrorkit.optim.functional import trainable_variables

# In bytes. A larger weight stays by itself: copying it takes longer than the operations that are saved. Processor
# time of ResNet-56's update with SGD, of what it was without joining: 0.89 at 4 KiB, 0.81 at 16, 0.90 at 40. For
# ResNet-20 the time was half as long again at 256.
_SMALL = 16 * 2**10
_FEWEST = 3  # weights in a group: joining and splitting two takes as many operations as it saves

# Optimizers that treat every number alike, and their attributes that hold a slot for each weight (private names of
# Keras; `tests/optim/test_packed.py` fails when they move). Exactly these classes: nothing is known of a subclass.
# Adafactor, Lamb and Muon look at a weight as a whole. Ftrl and ScheduleFreeAdamW were not examined.
_SLOTS: dict[type, tuple[str, ...]] = {
    keras.optimizers.SGD: ("momentums",),
    keras.optimizers.Adam: ("_momentums", "_velocities", "_velocity_hats"),
    keras.optimizers.AdamW: ("_momentums", "_velocities", "_velocity_hats"),
    keras.optimizers.Nadam: ("_momentums", "_velocities"),
    keras.optimizers.Adamax: ("_m", "_u"),
    keras.optimizers.Adagrad: ("_accumulators",),
    keras.optimizers.Adadelta: ("_accumulated_grads", "_accumulated_delta_vars"),
    keras.optimizers.RMSprop: ("_velocities", "_momentums", "_average_gradients"),
    keras.optimizers.Lion: ("_momentums",),
}


T = TypeVar("T")


def treats_numbers_alike(optimizer: KerasOptimizer) -> bool:
    """Return whether an optimizer updates each number of the weights by itself, whatever weight it belongs to."""
    return type(optimizer) in _SLOTS


def slots_by_name(optimizer: KerasOptimizer) -> dict[str, list[KerasVariable]]:
    """Return the slots of a built optimizer by the attribute that holds them, one for each weight; {} if not known."""
    lists = {name: list(getattr(optimizer, name, None) or []) for name in _SLOTS.get(type(optimizer), ())}
    return {name: of_all for name, of_all in lists.items() if of_all}


def _concatenated(parts: list[T]) -> T:
    joined: T = tf.concat(parts, 0)
    return joined


class Joined:
    """Weights in groups, of which each is joined to one.

    Args:
        weights: the weights.
        groups: which are joined, by their indices; one that stays by itself is a group of one.
    """

    def __init__(self, weights: Sequence[KerasVariable], groups: list[list[int]]) -> None:
        self._sizes = [weight.shape[0] if weight.ndim else 1 for weight in weights]
        self._groups = groups

    @classmethod
    def of(
        cls, optimizer: KerasOptimizer, weights: list[KerasVariable], has_gradient: Sequence[Sequence[bool]]
    ) -> Joined:
        """Join what `Packed` would, of weights for which the optimizer need not be built."""
        return cls(weights, _groups(optimizer, weights, has_gradient, [None] * len(weights)))

    def join(self, values: Sequence[T], concatenate: Callable[[list[T]], T] = _concatenated) -> list[T]:
        """Concatenate the values of each group; there is one for each weight, or None for all weights of a group."""
        groups = [[values[i] for i in group] for group in self._groups]
        return [parts[0] if len(parts) == 1 or parts[0] is None else concatenate(parts) for parts in groups]

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
        optimizer: what `functional_apply` takes together with joined values. Where weights are joined, a twin of the
            given optimizer that has the joined weights and slots for its own.

    Args:
        optimizer: a built Keras optimizer, which is left alone. Where its arithmetic looks at whole weights, or is not
            known to look at single numbers only, every weight stays by itself.
        has_gradient: for each part of the loss, and in it for each weight, whether there is a gradient. Weights that
            differ in it are not joined, and those without any are left to Keras, which warns of them by name.
        devices: for each weight its device, where they differ; weights of different devices are not joined.
    """

    def __init__(
        self,
        optimizer: KerasOptimizer,
        has_gradient: Sequence[Sequence[bool]],
        devices: Sequence[Hashable] | None = None,
    ) -> None:
        self.optimizer = optimizer
        weights, variables = trainable_variables(optimizer), optimizer.variables
        super().__init__(weights, [[i] for i in range(len(weights))])
        self._slots: list[list[int]] = []  # of each kind of slot, for each weight: its place among the variables
        self._others = list(range(len(variables)))  # places of the rest: iterations, learning rate

        twin = object.__new__(type(optimizer))
        vars(twin).update(vars(optimizer), _exclude_from_weight_decay_cache={})  # setattr would track what follows
        slots = slots_by_name(twin)
        places = {id(variable): place for place, variable in enumerate(variables)}
        of_weights = [[places.pop(id(slot), -1) for slot in of_all] for of_all in slots.values()]
        groups = _groups(twin, weights, has_gradient, devices or [None] * len(weights))
        # Only where the other variables are scalars: averages of `use_ema`, or a slot of a later Keras, are not.
        if len(groups) < len(weights) and not any(variables[place].ndim for place in places.values()):
            self._groups, self._slots, self._others = groups, of_weights, list(places.values())
            self._join_in(twin, list(slots))
            self.optimizer = twin

    def join_slots(self, slots: Sequence[T], concatenate: Callable[[list[T]], T] = _concatenated) -> list[T]:
        """Join the values of the optimizer's variables; the result is in the order of the twin's."""
        joined = [self.join([slots[place] for place in places], concatenate) for places in self._slots]
        return [*(slots[place] for place in self._others), *itertools.chain(*joined)]

    def split_slots(self, joined: Sequence[tf.Tensor | None]) -> list[tf.Tensor | None]:
        """Undo `join_slots`."""
        rest = iter(joined)
        slots = {place: next(rest) for place in self._others}
        for places in self._slots:
            slots.update(zip(places, self.split([next(rest) for _ in self._groups]), strict=True))
        return [slots[place] for place in range(len(slots))]

    def _join_in(self, twin: KerasOptimizer, names: list[str]) -> None:
        """Give a copy of the optimizer the joined weights and slots."""
        weights = trainable_variables(twin)
        variables = self.join_slots(twin.variables, _stand_in)
        slots = iter(variables[len(self._others) :])
        joined = self.join(weights, _stand_in)
        lists = {name: list(itertools.islice(slots, len(joined))) for name in names}
        keys = [twin._var_key(variable) for variable in joined]
        decays = [twin._use_weight_decay(weights[group[0]]) for group in self._groups]
        vars(twin).update(
            lists,
            _variables=variables,
            _trainable_variables=joined,
            _trainable_variables_indices={key: i for i, key in enumerate(keys)},
            _exclude_from_weight_decay_cache=dict(zip(keys, decays, strict=True)),
        )


def _groups(
    optimizer: KerasOptimizer,
    weights: list[KerasVariable],
    has_gradient: Sequence[Sequence[bool]],
    devices: Sequence[Hashable],
) -> list[list[int]]:
    """Return which weights are joined, by their indices; one that stays by itself is a group of one."""
    norms = optimizer.clipnorm or optimizer.global_clipnorm  # of each weight, or added up in the order of the weights
    odd = any(getattr(weight, "overwrite_with_gradient", False) for weight in weights)  # float8 scales: without slots
    if type(optimizer) not in _SLOTS or norms or odd:
        return [[i] for i in range(len(weights))]
    groups: dict[Hashable, list[int]] = {}
    for i, weight in enumerate(weights):
        has = tuple(of_part[i] for of_part in has_gradient)
        small = math.prod(weight.shape) * tf.as_dtype(weight.dtype).size <= _SMALL
        key = (weight.dtype, tuple(weight.shape[1:]), optimizer._use_weight_decay(weight), has, devices[i])
        alone = not small or not weight.ndim or not any(has) or weight.constraint is not None
        groups.setdefault(i if alone else key, []).append(i)
    return [part for group in groups.values() for part in ([group] if len(group) >= _FEWEST else [[i] for i in group])]


def _stand_in(variables: list[KerasVariable]) -> KerasVariable:
    """Make a variable for the optimizer to name the joined ones by; its value is never read."""
    first = variables[0]
    shape = (sum(variable.shape[0] for variable in variables), *first.shape[1:])
    with tf.device("CPU:0"):
        return keras.Variable("zeros", shape=shape, dtype=first.dtype, trainable=False, name="joined")
