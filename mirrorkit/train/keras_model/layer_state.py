"""Layer state under replicas: BatchNorm's statistics, Dropout's seeds, and whatever else a layer updates by itself.

Every replica starts from the same state and ends with the same state. Floats (moving statistics) become the mean over
all examples of the replicas' values. Integers (counters of calls) and flags advance as on each replica; those that
follow from rows, of which a replica has its own, are refused. The states of Keras's seed generators stay: what is drawn
follows from the seed, the step and the replica, so no two draw the same mask.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence

import tensorflow as tf

from mirrorkit._keras import keras
from mirrorkit._types import KerasLayer, KerasModel, KerasVariable, Nest
from mirrorkit.data import HOST
from mirrorkit.errors import StepError
from mirrorkit.train.keras_model.seeds import fold, number_among


class LayerState:
    """The non-trainable variables of a model, and the arithmetic that keeps them equal on all replicas."""

    def __init__(self, model: KerasModel) -> None:
        self.variables = list(model.non_trainable_variables)
        self.synchronized = any(getattr(layer, "synchronized", False) for layer in layers_of(model))
        self._stays = [is_generator(variable) for variable in self.variables]
        frozen = {id(variable) for layer in layers_of(model) if not layer.trainable for variable in layer.variables}
        frozen |= getattr(model, "kept", set)()
        # Indices of the state that training may change: weights of frozen layers, which are state here, are none.
        floats = [i for i, v in enumerate(self.variables) if tf.as_dtype(v.dtype).is_floating]
        self.averaged = [i for i in floats if id(self.variables[i]) not in frozen]
        trained = model.trainable_variables
        self._numbers = [number_among(v, trained) if is_seed(v) else None for v in self.variables]  # of seeds

    @property
    def seeds(self) -> list[KerasVariable]:
        """The states of Keras's seed generators."""
        return [variable for variable, stays in zip(self.variables, self._stays, strict=True) if stays]

    def seeded(self, state: Sequence[tf.Tensor], place: tf.Tensor) -> list[tf.Tensor]:
        """Return the state with every seed made that of one shard of one step, or of a batch outside of training.

        `place` is int64 [N], the numbers that name it: see `Reading.place`.
        """
        with tf.device(HOST):  # where random operations take their seeds from; no place ends with a number below 0
            numbers = tf.unstack(place)

            def own(value: tf.Tensor, number: int) -> tf.Tensor:
                # A fold leaves its number where Keras counts the draws: with another one than 0 at the end, the second
                # draw of a shard would be the first one of the next.
                return fold(value, *numbers, *(tf.constant(n, tf.int64) for n in ([-number, 0] if number else [0])))

            return [
                value if number is None else own(value, number)
                for value, number in zip(state, self._numbers, strict=True)
            ]

    def require_no_rows(self, old: Sequence[tf.Tensor], new: Sequence[tf.Tensor], rows: Nest) -> None:
        """Refuse a pass, in a graph, that computes an integer or a flag from rows, of which a replica has its own."""
        for variable, stays, before, after in zip(self.variables, self._stays, old, new, strict=True):
            is_counter = not (stays or after is before or after.dtype.is_floating)
            if is_counter and some_follow([after], rows):
                raise StepError(
                    f"The state {variable.path!r} of a layer is an integer or a bool that depends on the rows, such as "
                    "a count of them or whether one was seen. Replicas' values of it cannot be combined, only those "
                    "that are the same on all replicas, such as a count of calls. Leave it to a metric, or keep a mean "
                    "over the rows (keras.ops.mean) in floats. If you know that it is right, write Step(..., "
                    "unchecked=('state',))."
                )

    def sums(self, old: Sequence[tf.Tensor], new: Sequence[tf.Tensor], examples: tf.Tensor) -> list[tf.Tensor | None]:
        """Return what one shard adds: value, or advance of an integer, times its examples.

        None stands for what is not sent: seeds, and what the pass left alone (frozen layers, say). `examples` is the
        number of examples, a scalar.
        """
        changed = [
            None if stays or after is before else advance(before, after)
            for stays, before, after in zip(self._stays, old, new, strict=True)
        ]
        return [
            None if value is None else tf.ensure_shape(value * tf.cast(examples, value.dtype), variable.shape)
            for variable, value in zip(self.variables, changed, strict=True)
        ]

    def new_values(
        self, changes: Sequence[bool], sums: Sequence[tf.Tensor], state: Sequence[tf.Tensor], examples: tf.Tensor
    ) -> list[tf.Tensor | None]:
        """Return each variable's new value from the sums over all shards; None where nothing `changes` it."""
        rest = iter(sums)
        return [combined(old, next(rest), examples) if has else None for old, has in zip(state, changes, strict=True)]


def some_follow(values: Sequence[tf.Tensor], data: Nest) -> bool:
    """Return whether tensors of the graph that is traced depend on others, which may be of a graph around it."""
    begin = {tf.identity(one).op.inputs[0].op for one in tf.nest.flatten(data, expand_composites=True)}
    return bool(operations_of(values) & begin)


def operations_of(values: Sequence[tf.Tensor]) -> set[tf.Operation]:
    """Return the operations of a graph that tensors follow from."""
    found, left = set(), [value.op for value in values]  # one walk for all: a large model has many operations
    while left:
        op = left.pop()
        if op not in found:
            found.add(op)
            left += [one.op for one in op.inputs]
    return found


def advance(before: tf.Tensor, after: tf.Tensor) -> tf.Tensor:
    """Return of a variable that was assigned what is to be averaged: its value, or the advance of an integer."""
    value = after if after.dtype.is_floating else _integer(after) - _integer(before)
    return tf.cast(value, summed_as(after.dtype))


def combined(old: tf.Tensor, total: tf.Tensor, examples: tf.Tensor) -> tf.Tensor:
    """Return the new value from each shard's `advance` times its examples, and the examples, added up."""
    mean = tf.math.divide_no_nan(total, tf.cast(examples, total.dtype))
    if not old.dtype.is_floating:
        mean = _integer(old) + tf.cast(tf.round(mean), _integer(old).dtype)
    return tf.cast(mean, old.dtype)


def summed_as(dtype: tf.DType) -> tf.DType:
    """Return the dtype in which such numbers are summed over replicas; that of most, so that they share a message."""
    return tf.float64 if dtype.size == 8 else tf.float32


def _integer(value: tf.Tensor) -> tf.Tensor:
    return tf.cast(value, tf.int32) if value.dtype == tf.bool else value


def is_generator(variable: KerasVariable) -> bool:
    """Return whether a variable is the state of a `keras.random.SeedGenerator`."""
    return is_seed(variable) and variable.name == "seed_generator_state"


def is_seed(variable: KerasVariable) -> bool:
    """Return whether a variable holds a seed: the state of a `keras.random.SeedGenerator`, or one of a layer's own."""
    return "seed" in variable.path and tuple(variable.shape) == (2,) and "int" in variable.dtype


def layers_of(model: KerasModel) -> list[KerasLayer]:
    """Return a model and all layers in it, those that are attributes of other layers or wrapped by them too."""
    return list(model._flatten_layers())  # private to Keras; the public `layers` stops at the model's own


def has_sixteen_bits(model: KerasModel) -> bool:
    """Return whether a layer computes in 16 bits."""
    return any(getattr(layer, "compute_dtype", None) in ("float16", "bfloat16") for layer in layers_of(model))


def overrides(model: KerasModel, name: str) -> bool:
    """Return whether a model, or its class, defines a method that `keras.Model` has too."""
    return getattr(getattr(model, name), "__func__", None) is not getattr(keras.Model, name)


def training_argument(model: KerasModel, training: bool) -> dict[str, bool]:
    """Return `{"training": training}` where the model's `call` takes it; a subclassed one need not."""
    return {"training": training} if takes(inspect.signature(model.call), "training") else {}


def takes(signature: inspect.Signature, name: str) -> bool:
    """Return whether a function with this signature has an argument of this name."""
    return any(p.name == name or p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
