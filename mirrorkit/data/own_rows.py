"""Which rows of a global batch a worker reads: those that its replicas train on."""

from __future__ import annotations

import tensorflow as tf


def own_rows(size: int, context: tf.distribute.InputContext | None) -> tuple[int, int]:
    """Return the first of a worker's rows in a global batch of `size` examples, and the first that is no longer its own.

    Replicas take consecutive rows, the first ones `ceil(size / replicas)` each. Where some replica would get none, every
    worker has all rows: layers that wait for every replica need them. Without a context all rows are asked for.
    """
    if context is None:
        return 0, size
    replicas = context.num_replicas_in_sync
    here = replicas // context.num_input_pipelines
    largest = -(-size // replicas)
    if (replicas - 1) * largest >= size:
        return 0, size
    first = context.input_pipeline_id * here
    return first * largest, min((first + here) * largest, size)
