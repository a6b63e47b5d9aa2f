"""Which rows of a global batch belong to a replica, and which a worker reads: those of its replicas."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def bounds(size: Any, replica: Any, replicas: Any) -> tuple[Any, Any]:
    """Return the first row of a batch of `size` rows that belongs to `replica`, and the first that no longer does."""
    largest = -(-size // replicas)
    least = min if isinstance(size, int) and isinstance(replica, int) else tf.minimum
    return least(replica * largest, size), least((replica + 1) * largest, size)


def own_rows(size: int, context: tf.distribute.InputContext | None) -> tuple[int, int]:
    """Return where a worker's rows in a global batch of `size` examples begin and end.

    Replicas take consecutive rows, the first ones `ceil(size / replicas)` each. Where some replica would get none,
    every worker has all rows: layers that wait for every replica need them. Without a context all rows are asked for.
    """
    if context is None:
        return 0, size
    replicas = context.num_replicas_in_sync
    here = replicas // context.num_input_pipelines
    first, end = bounds(size, replicas - 1, replicas)  # of the last one
    if first >= end:
        return 0, size
    first = context.input_pipeline_id * here
    return bounds(size, first, replicas)[0], bounds(size, first + here - 1, replicas)[1]
