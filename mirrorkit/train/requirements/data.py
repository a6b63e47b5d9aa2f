"""What a step requires of its data."""

from __future__ import annotations

import tensorflow as tf

from mirrorkit._types import KerasModel, Nest, Spec
from mirrorkit.errors import StepError
from mirrorkit.train.keras_model.outputs import unpack_batch


def check_tensors(element_spec: Spec) -> None:
    """Refuse data whose parts are not dense tensors of known rank: a replica could not slice its rows out of them."""
    for spec in tf.nest.flatten(element_spec):
        if isinstance(spec, (tf.RaggedTensor, tf.RaggedTensorSpec, tf.SparseTensor, tf.SparseTensorSpec)):
            raise StepError(
                f"The data yields {type(spec).__name__.removesuffix('Spec')}s; a step takes dense tensors. Make them "
                "dense in the dataset: dataset.map(...) with .to_tensor() or tf.sparse.to_dense."
            )
        if spec is not None and tf.TensorShape(spec.shape).rank is None:
            raise StepError(
                "The data does not tell the rank of its tensors. Give Dataset.from_generator an output_signature such "
                "as (tf.TensorSpec([None, 28, 28, 1]), tf.TensorSpec([None], tf.int64)), or use tf.ensure_shape in "
                "dataset.map."
            )


def check_batched(model: KerasModel, x: Nest) -> None:
    """Refuse data that yields text where the model takes numbers, or single examples where batches are needed."""
    inputs = getattr(model, "inputs", None) or []
    for spec, given in zip(tf.nest.flatten(x), inputs, strict=False):
        if spec.dtype == tf.string and given.dtype != "string":
            raise StepError(
                f"The data yields text {spec.shape}, where the model takes {given.dtype} {given.shape}. Turn text into "
                "numbers in the dataset, with keras.layers.TextVectorization or StringLookup in its map, say."
            )
        example, found = tuple(given.shape[1:]), tf.TensorShape(spec.shape)
        if example and None not in example and found.rank is not None and tuple(found) == example:
            raise StepError(
                f"The data yields single examples of shape {example}; a step takes global batches. Batch the dataset: "
                "dataset.batch(256)."
            )


def check_class_targets(model: KerasModel, element_spec: Spec) -> None:
    """Refuse a label for each position where `class_weight` would read one-hot rows."""
    y = unpack_batch(element_spec).y
    for output in (getattr(model, "outputs", None) or [])[:1]:
        if y.shape.rank == 2 and y.shape[-1] != 1 and len(output.shape) > 2:
            raise StepError(
                f"class_weight needs one class for each example; found targets {tuple(y.shape)} for the output "
                f"{tuple(output.shape)}, a label for each position. Weigh the classes in a loss of your own."
            )


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
