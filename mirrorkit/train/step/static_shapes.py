"""What a TPU asks of data and model: shapes that are known before anything runs, and no float16."""

from __future__ import annotations

import tensorflow as tf

from mirrorkit._types import KerasModel, Spec
from mirrorkit.errors import StepError
from mirrorkit.train.step.layer_state import layers_of


def require_static_batches(element_spec: Spec, replicas: int) -> None:
    """Refuse global batches of unknown size or shape, or that the replicas cannot share equally."""
    for spec in tf.nest.flatten(element_spec):
        shape = tf.TensorShape(spec.shape)
        if shape.rank is None or shape[0] is None:
            raise StepError(
                f"A TPU needs batches of one static size; found {spec}. Pass drop_remainder=True to mk.data.batches, "
                "mk.data.records or dataset.batch. To evaluate on every example, take a batch size that divides their "
                "number."
            )
        if not shape.is_fully_defined():
            raise StepError(f"A TPU needs static shapes; found {spec}. Pad or crop the examples to one shape.")
        if shape[0] % replicas:
            raise StepError(
                f"A global batch of {shape[0]} cannot be shared equally by {replicas} TPU cores. Take a multiple of "
                f"{replicas}, such as {-(-shape[0] // replicas) * replicas}."
            )


def require_tpu_precision(model: KerasModel) -> None:
    """Refuse float16, for which a TPU has no arithmetic."""
    for layer in layers_of(model):
        if getattr(layer, "compute_dtype", None) == "float16":
            raise StepError(
                f"The layer {layer.name!r} computes in float16, for which a TPU has no arithmetic. Use "
                'keras.config.set_dtype_policy("mixed_bfloat16"), which needs no loss scale.'
            )
