"""Layer state under replicas: BatchNorm's statistics, Dropout's seeds, and whatever else a layer updates by itself.

Every replica starts from the same state and ends with the same state. Floats (moving statistics) become the mean over
all examples of what the replicas came to. Integers (counters of calls) advance by the replicas' mean. The states of
Keras's seed generators stay: what is drawn follows from the seed, the step and the replica, so no two draw the same
mask.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from mirrorkit.data import HOST
from mirrorkit.train.step.seeds import fold


class LayerState:
    """The non-trainable variables of a model, and the arithmetic that keeps them equal on all replicas.

    Args:
        model: a built Keras model.
    """

    def __init__(self, model: Any) -> None:
        self.variables = list(model.non_trainable_variables)
        self.synchronized = any(getattr(layer, "synchronized", False) for layer in layers_of(model))
        self._is_seed = [is_seed(variable) for variable in self.variables]
        self._stays = [is_generator(variable) for variable in self.variables]
        self._changed: list[int] = []  # what training changes; known once the model was traced

    @property
    def seeds(self) -> list[Any]:
        """The states of Keras's seed generators."""
        return [variable for variable, stays in zip(self.variables, self._stays, strict=True) if stays]

    def seeded(self, state: Sequence[tf.Tensor], place: tf.Tensor) -> list[tf.Tensor]:
        """Return the state with every seed made that of one shard of one step.

        Args:
            state: values of the variables.
            place: int64 [2]: steps before this one, and the shard (part * replicas + replica).
        """
        with tf.device(HOST):  # where random operations take their seeds from
            return [
                fold(fold(value, place[0]), place[1]) if seed else value
                for value, seed in zip(state, self._is_seed, strict=True)
            ]

    def sums(self, old: Sequence[tf.Tensor], new: Sequence[tf.Tensor], examples: tf.Tensor) -> list[tf.Tensor]:
        """Return what one shard of `examples` (float32 scalar) adds: value, or advance of an integer, times examples.

        State that the pass left alone (frozen layers, say) is not sent.
        """
        changed = [after is not before for before, after in zip(old, new, strict=True)]
        self._changed = [i for i, stays in enumerate(self._stays) if changed[i] and not stays]
        sums = []
        for i in self._changed:
            value = new[i] if new[i].dtype.is_floating else _integer(new[i]) - _integer(old[i])
            sums.append(tf.ensure_shape(tf.cast(value, tf.float32) * examples, self.variables[i].shape))
        return sums

    def no_sums(self) -> list[tf.Tensor]:
        """Return what an empty shard adds."""
        return [tf.zeros(self.variables[i].shape, tf.float32) for i in self._changed]

    def new_values(
        self, sums: Sequence[tf.Tensor], state: Sequence[tf.Tensor], examples: tf.Tensor
    ) -> list[tf.Tensor | None]:
        """Return each variable's new value from the sums over all shards; None where nothing changes it."""
        new: list[tf.Tensor | None] = [None] * len(state)
        for i, total in zip(self._changed, sums, strict=True):
            mean = tf.math.divide_no_nan(total, examples)
            if state[i].dtype.is_floating:
                new[i] = tf.cast(mean, state[i].dtype)
            else:
                advanced = _integer(state[i]) + tf.cast(tf.round(mean), _integer(state[i]).dtype)
                new[i] = tf.cast(advanced, state[i].dtype)
        return new


def _integer(value: tf.Tensor) -> tf.Tensor:
    return tf.cast(value, tf.int32) if value.dtype == tf.bool else value


def is_generator(variable: Any) -> bool:
    """Return whether a variable is the state of a `keras.random.SeedGenerator`."""
    return is_seed(variable) and variable.name == "seed_generator_state"


def is_seed(variable: Any) -> bool:
    """Return whether a variable holds a seed: the state of a `keras.random.SeedGenerator`, or one of a layer's own."""
    return "seed" in variable.path and tuple(variable.shape) == (2,) and "int" in variable.dtype


def layers_of(model: Any) -> list[Any]:
    """Return a model and all layers in it, those that are attributes of other layers or wrapped by them too."""
    return model._flatten_layers()  # private to Keras; the public `layers` stops at the model's own


def training_argument(model: Any, training: bool) -> dict[str, bool]:
    """Return `{"training": training}` where the model's `call` takes it; a subclassed one need not."""
    parameters = inspect.signature(model.call).parameters.values()
    takes_it = any(p.name == "training" or p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)
    return {"training": training} if takes_it else {}
