"""What layers keep of a trace in Python attributes: which losses they have added, and tensors of the user's."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

from mirrorkit._types import KerasLayer
from mirrorkit.train.reduce.switching import Save


def kept_by(layers: Sequence[KerasLayer]) -> Save:
    """Return what saves it, for `keeping`: replicas share the layers, and are traced in turns."""
    # Keras's own layers keep no tensors.
    users = [vars(layer) for layer in layers if not type(layer).__module__.startswith("keras.")]

    def save() -> Callable[[], None]:
        tensors = [{name: value for name, value in attributes.items() if _is_value(value)} for attributes in users]
        # Private to Keras: in a stateless scope a layer knows by these which of the scope's losses are its own.
        losses = [set(layer._loss_ids) for layer in layers]

        def put_back() -> None:
            for attributes, values in zip(users, tensors, strict=True):
                attributes.update(values)
            for layer, own in zip(layers, losses, strict=True):
                layer._loss_ids.clear()
                layer._loss_ids.update(own)

        return put_back

    return save


def _is_value(value: object) -> bool:
    return tf.is_tensor(value) and not isinstance(value, tf.Variable)
