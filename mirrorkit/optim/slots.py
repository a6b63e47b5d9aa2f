"""Which of Keras's optimizers treat every number of the weights alike, and which slots they have for each weight."""

from __future__ import annotations

from mirrorkit import private
from mirrorkit._keras import keras
from mirrorkit._types import KerasOptimizer, KerasVariable

# Their attributes that hold a slot for each weight. Exactly these classes: nothing is known of a subclass. Adafactor,
# Lamb and Muon look at a weight as a whole. Ftrl and ScheduleFreeAdamW were not examined.
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


def treats_numbers_alike(optimizer: KerasOptimizer) -> bool:
    """Return whether an optimizer updates each number of the weights by itself, whatever weight it belongs to."""
    missing = [name for name in _SLOTS.get(type(optimizer), ()) if not private.has(optimizer.build, name)]
    for name in missing:
        private.tell_missing(f"the build of an optimizer.{name}")
    return type(optimizer) in _SLOTS and not missing


def slots_of(optimizer: KerasOptimizer) -> list[list[KerasVariable]]:
    """Return the slots of a built optimizer: for each kind a list with one for each weight; no list if not known."""
    kinds = (getattr(optimizer, name, None) for name in _SLOTS.get(type(optimizer), ()))
    return [list(of_all) for of_all in kinds if of_all]


def places_of(optimizer: KerasOptimizer) -> tuple[list[list[int]], list[int]]:
    """Return the places of a built optimizer's slots among its variables, by list and weight, and of the others."""
    places = {id(variable): place for place, variable in enumerate(optimizer.variables)}
    slots = []
    for of_all in slots_of(optimizer):
        slots.append([places.pop(id(slot), -1) for slot in of_all])
    return slots, list(places.values())
