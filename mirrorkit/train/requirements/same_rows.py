"""See that all components of a batch have a row for each example: one row alone would be broadcast without an error."""

from __future__ import annotations

import re
from collections.abc import Sequence

import tensorflow as tf

from mirrorkit._types import Batch, Nest, Spec
from mirrorkit.data import HOST
from mirrorkit.errors import DataError, StepError

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
