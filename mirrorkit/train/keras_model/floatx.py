"""float64 data as the model takes it: cast to `keras.config.floatx()`, as Keras's `fit` does."""

from __future__ import annotations

import logging

import tensorflow as tf

from mirrorkit._keras import keras
from mirrorkit._types import KerasModel, Nest
from mirrorkit.train.keras_model.layer_state import layers_of
from mirrorkit.train.keras_model.outputs import UnpackedBatch

_log = logging.getLogger("mirrorkit")


def is_wide(tensor: tf.Tensor | tf.TypeSpec | None) -> bool:
    """Whether Keras would cast it: float64 where `keras.config.floatx()` is another."""
    return bool(getattr(tensor, "dtype", None) == tf.float64) and keras.config.floatx() != "float64"


def in_floatx(batch: Nest) -> Nest:
    """Cast float64 tensors, or their specs, to `keras.config.floatx()`, as Keras's `fit` does with arrays."""

    def cast(tensor: tf.Tensor | tf.TypeSpec) -> tf.Tensor | tf.TypeSpec:
        if not is_wide(tensor):
            return tensor
        if isinstance(tensor, tf.TensorSpec):
            return tf.TensorSpec(tensor.shape, keras.config.floatx())
        return tf.cast(tensor, keras.config.floatx()) if tf.is_tensor(tensor) else tensor

    return tf.nest.map_structure(cast, batch)


class Cast:
    """Casts float64 in batches to `keras.config.floatx()` and says so once; not for a model that computes in it."""

    def __init__(self, model: KerasModel) -> None:
        self._is_wanted = any(getattr(layer, "compute_dtype", None) == "float64" for layer in layers_of(model))
        self._told = False

    def __call__(self, parts: UnpackedBatch) -> UnpackedBatch:
        """Return the batch as the model takes it."""
        if self._is_wanted or not any(map(is_wide, tf.nest.flatten(tuple(parts)))):
            return parts
        if not self._told:
            _log.info(
                "The data holds float64, which is cast to %s (keras.config.floatx()), as Keras's fit does. Data of "
                "that dtype from the start takes half the memory.",
                keras.config.floatx(),
            )
            self._told = True
        cast: UnpackedBatch = in_floatx(parts)
        return cast
