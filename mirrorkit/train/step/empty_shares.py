"""What a replica adds whose share of a batch has no examples: zeros, without a run of the model."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from mirrorkit._types import Nest
from mirrorkit.train.step.outputs import count_examples, unpack_batch


def has_no_rows(batch: Nest) -> bool:
    """Return whether a share is known beforehand to have no examples."""
    return bool(tf.nest.flatten(batch)[0].shape[0] == 0)


def of_any_size(batch: Nest) -> Nest:
    """Return the specs of shares like this one with any number of examples."""
    return tf.nest.map_structure(lambda tensor: tf.TensorSpec([None, *tensor.shape[1:]], tensor.dtype), batch)


def unless_empty(batch: Nest, full: Callable[[], Nest]) -> Nest:
    """Call `full`, or return zeros in its place where the share turns out to have no examples.

    An empty share would make statistics NaN, and the gradient of max pooling kills the process on CPU. `full` returns a
    nest of tensors of static shape, and None.
    """
    if tf.nest.flatten(batch)[0].shape[0] is not None:
        return full()
    found: list[Nest] = []

    def some() -> Nest:
        found.append(full())  # the first branch is traced first
        return found[0]

    def nothing() -> Nest:
        return tf.nest.map_structure(lambda t: None if t is None else tf.zeros(t.shape, t.dtype), found[0])

    return tf.cond(count_examples(unpack_batch(batch)) > 0, some, nothing)
