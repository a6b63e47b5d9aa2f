"""What a step requires of its data: dense batches, whose components have a row for each example.

One row alone would be broadcast without an error.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import tensorflow as tf

from mirrorkit._types import Batch, KerasModel, Nest, Spec
from mirrorkit.data import HOST
from mirrorkit.errors import DataError, StepError
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
    named = {one.name: one for one in inputs}
    if isinstance(x, Mapping) and named.keys() <= x.keys():  # Keras takes these alone
        x, inputs = [x[name] for name in named], list(named.values())
    for spec, given in zip(tf.nest.flatten(x), inputs, strict=False):
        if spec.dtype == tf.string and given.dtype != "string":
            raise StepError(
                f"The data yields text {spec.shape}, where the model takes {given.dtype} {given.shape}. Turn text into "
                "numbers in the dataset, with keras.layers.TextVectorization or StringLookup in its map, say."
            )
        example, found = tuple(given.shape[1:]), tf.TensorShape(spec.shape)
        # Of one-dimensional data Keras makes [N, 1], and a share may have one row.
        if example not in ((), (1,)) and None not in example and found.rank is not None and tuple(found) == example:
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


_ASSERTED = "All components of a batch need a row for each example; found different numbers of rows:"  # an assertion
_AROUND = re.compile(r"\x1b\[\d*m|{{function_node \S+}}|\[Op:.*|Arguments received by .*", re.DOTALL)
ANY_ROWS = (
    "A batch, and a replica's share of it, may have any number of rows: take it from the data (tf.shape(x)[0]), not "
    "from a constant batch size."
)
_FAILED = re.compile(re.escape(_ASSERTED) + r" (.*?)\] \[([\d ]+)\] \[(-?\d+)\]")


def require_same_rows(element: Spec, batch: int | None = None) -> None:
    """Refuse a batch (tensors or specs) whose components are known to have different numbers of rows."""
    rows = [
        _rows(tf.TensorShape(getattr(leaf, "shape", None))) for leaf in tf.nest.flatten(element) if leaf is not None
    ]
    if len({*rows} - {"any"}) < 2 and "no" not in rows:
        return
    fault = _fault(names_of(element), rows)
    if batch is None:
        raise StepError(fault)
    raise DataError(f"{fault} (Batch {batch}, counted from 0.)")


def with_same_rows(batch: Batch, number: tf.Tensor | int = -1) -> Batch:
    """Return the batch, with an assertion on its components' rows where these are not known beforehand.

    `number` is which batch it is. The rows are compared on the host, which knows them wherever the batch lies.
    """
    require_same_rows(batch)
    tensors = [tensor for tensor in tf.nest.flatten(batch) if tensor is not None]
    if len(tensors) == 1 or all(tensor.shape[0] is not None for tensor in tensors):
        return batch
    counts = [tf.shape(tensor)[0] for tensor in tensors]
    with tf.device(HOST):
        rows = tf.stack(counts)
        told = [f"{_ASSERTED} {', '.join(names_of(batch))}", rows, number]
        asserted = tf.debugging.Assert(tf.reduce_all(rows == rows[0]), told, summarize=-1)
    with tf.control_dependencies([asserted]):
        return tf.nest.map_structure(lambda tensor: None if tensor is None else tf.identity(tensor), batch)


def asserted_rows(message: str) -> tuple[str, int] | None:
    """Return what a failed assertion of `with_same_rows` says, and of which batch (-1: not known)."""
    found = _FAILED.search(message)
    return found and (_fault(found[1].split(", "), found[2].split()), int(found[3]))


def told(error: BaseException) -> str:
    """Return the kind and the words of an error in one line, without what Keras and TensorFlow add to them."""
    return f"{type(error).__name__}: {' '.join(_AROUND.sub('', str(error)).split()).rstrip('.')}."


def names_of(element: Nest) -> list[str]:
    """Name the components of a batch in the order of `tf.nest.flatten`: "[0]", "[1][label]" of `(x, {"label": y})`."""
    if not tf.nest.is_nested(element):
        return [""]
    parts = [(key, element[key]) for key in sorted(element)] if hasattr(element, "keys") else enumerate(element)
    return [f"[{key}]{name}" for key, part in parts if part is not None for name in names_of(part)]


def _rows(shape: tf.TensorShape) -> int | str:
    if shape.rank == 0:
        return "no"
    return "any" if shape.rank is None or shape[0] is None else int(shape[0])


def _fault(names: Sequence[str], rows: Sequence[int | str]) -> str:
    found = ", ".join(f"component {name} has {number}" for name, number in zip(names, rows, strict=True))
    return (
        f"{_ASSERTED} {found}. Look at how the dataset pairs and batches them; several rows for each example belong "
        "into one component, [rows, several, ...]."
    )
