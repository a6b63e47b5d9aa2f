"""A global batch as a step sees it: which rows are this replica's, and what to do when there are none.

Loop reads global batches on the host, and every replica cuts out its own rows inside the compiled call. So a batch is
split in one way on every strategy, its size stays static where it is, and no iterator lives on a device: TensorFlow's
per-device iterators each run a tuning thread that can hold up the end of an epoch for many seconds.

The sums of a replica whose share of a batch is empty are zeros, without a call of the model. Where replicas communicate
within the model (`BatchNormalization(synchronized=True)`, a loss over the whole batch), no replica may leave the call
out, since the others wait for it; and the gradients of convolutions and pooling fail on zero rows. So if any share is
empty, every replica computes the whole global batch, and its sums count 1/N. Mean, variance and gathered rows of N
copies of a batch are those of the batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import tensorflow as tf

from mirrorkit._types import Batch, Nest
from mirrorkit.data import HOST, bounds
from mirrorkit.errors import StepError
from mirrorkit.train.keras_model.outputs import count_examples
from mirrorkit.train.reduce.gathering import gather_rows, gather_sizes
from mirrorkit.train.requirements.data import with_same_rows


class GlobalBatch(Protocol):
    """One global batch inside a compiled call, wherever its examples lie."""

    def rows(self) -> Batch:
        """Return this replica's rows; in replica context."""

    def rows_or_all(self) -> tuple[Batch, bool | tf.Tensor]:
        """Return this replica's rows, or those of all where some replica would get none; in replica context.

        Also returned is whether they are those of all: a bool where that is known beforehand, else a tensor on the
        host, which knows the size of a global batch. Every replica comes to the same without asking another.
        """

    def examples(self) -> tf.Tensor:
        """Return the number of examples in the whole batch (int32 scalar)."""


@dataclass(frozen=True, eq=False)
class HostBatch:
    """A global batch on the host: a nest of tensors with the same first dimension.

    The rows of a replica are consecutive and in the order of the replicas; the first replicas get
    `ceil(batch / replicas)` each, the last ones what is left, which may be nothing.

    Args:
        batch: the examples; on several workers perhaps the rows of this worker's replicas alone.
        size: of the whole batch, where these are a worker's rows.
        first: which row of the whole batch they begin with.
    """

    batch: Batch
    size: int | None = None
    first: int = 0

    def rows(self) -> Batch:
        """See `GlobalBatch`."""
        replica, replicas = this_replica()
        return self.batch if replicas == 1 else self._cut(replica, replicas)

    def rows_or_all(self) -> tuple[Batch, bool | tf.Tensor]:
        """See `GlobalBatch`."""
        replica, replicas = this_replica()
        with tf.device(HOST):
            is_all = some_is_empty(self.examples(), replicas)
            if isinstance(is_all, bool):
                return self.batch if is_all else self.rows(), is_all
            # as if it were alone
            return self._cut(tf.where(is_all, 0, replica), tf.where(is_all, 1, replicas)), is_all

    def examples(self) -> tf.Tensor:
        """See `GlobalBatch`."""
        return count_examples(self.batch) if self.size is None else tf.constant(self.size)

    def _cut(self, replica: Any, replicas: Any) -> Batch:
        def rows(tensor: tf.Tensor) -> tf.Tensor:
            size = self.size or (tf.shape(tensor)[0] if tensor.shape[0] is None else tensor.shape[0])
            first, end = bounds(size, replica, replicas)
            return tensor[first - self.first : end - self.first]

        with tf.device(HOST):  # cut first, so that only a replica's own rows travel to its device
            return tf.nest.map_structure(rows, self.batch)


class OwnRows:
    """Rows that are a replica's own already, as `strategy.run` gives them to a custom training loop."""

    def __init__(self, rows: Batch) -> None:
        self._rows = with_same_rows(rows)

    def rows(self) -> Batch:
        """See `GlobalBatch`."""
        return self._rows

    def rows_or_all(self) -> tuple[Batch, bool | tf.Tensor]:
        """See `GlobalBatch`; where a size is not static, the replicas ask each other, and a GPU's host waits for it."""
        context = tf.distribute.get_replica_context()
        replicas, size = context.num_replicas_in_sync, tf.nest.flatten(self._rows)[0].shape[0]
        if size == 0:
            raise StepError(
                "A replica got no example of this batch, and synchronized layers, or a loss over the whole batch, wait "
                "for every replica. Train with a Loop, which shares such a batch among all of them, or with larger "
                "batches."
            )
        if replicas == 1 or size is not None:  # shares of static size are assumed not to be empty
            return self._rows, False
        own = tf.cast(count_examples(self._rows), tf.int64)
        sizes = gather_sizes(own)
        first = tf.reduce_sum(sizes[: context.replica_id_in_sync_group])
        is_all = tf.reduce_any(sizes == 0)
        begin = tf.where(is_all, tf.zeros_like(first), first)
        end = tf.where(is_all, tf.reduce_sum(sizes), first + own)
        whole = gather_rows(self._rows, sizes)
        return tf.nest.map_structure(lambda tensor: tensor[begin:end], whole), is_all

    def examples(self) -> tf.Tensor:
        """See `GlobalBatch`; in replica context."""
        context, own = tf.distribute.get_replica_context(), count_examples(self._rows)
        return own if context.num_replicas_in_sync == 1 else context.all_reduce(tf.distribute.ReduceOp.SUM, own)


def share_of(batch: GlobalBatch, *, communicates: bool, branches: bool = True) -> tuple[Batch, bool | tf.Tensor]:
    """Return the rows that this replica computes, and whether they are those of all; in replica context.

    Args:
        batch: the batch.
        communicates: whether replicas wait for each other while they compute, so that none may be without rows.
        branches: whether a share that turns out to be empty can be left out; see `OneDevice`.
    """
    if not communicates:
        rows = batch.rows()
        if branches or tf.nest.flatten(rows)[0].shape[0] is not None:
            return rows, False
    return batch.rows_or_all()


def this_replica() -> tuple[Any, int]:
    """Return this replica's number (a Python int where it is known) and how many there are; in replica context."""
    context = tf.distribute.get_replica_context()
    replica = context.replica_id_in_sync_group
    static = tf.get_static_value(replica)
    return (replica if static is None else int(static)), context.num_replicas_in_sync


def largest_share(batch: GlobalBatch) -> int | None:
    """Return how many rows of a batch of a loop a replica has at most; None where that is not known beforehand."""
    size = tf.get_static_value(batch.examples())
    return None if size is None else int(bounds(int(size), 0, this_replica()[1])[1])


def some_is_empty(size: int | tf.Tensor, replicas: int) -> bool | tf.Tensor:
    """Return whether one of the replicas gets no row of a batch of this size; a bool where that is known beforehand."""
    static = tf.get_static_value(size)
    first, end = bounds(size if static is None else int(static), replicas - 1, replicas)  # of the last one
    return replicas > 1 and first >= end


def has_no_rows(batch: Nest) -> bool:
    """Return whether a share is known beforehand to have no examples."""
    return bool(tf.nest.flatten(batch)[0].shape[0] == 0)


def of_size(batch: Nest, size: int | None) -> Nest:
    """Return the specs of a share like this one with so many examples, or with any number."""
    return tf.nest.map_structure(lambda tensor: tf.TensorSpec([size, *tensor.shape[1:]], tensor.dtype), batch)


def unless_empty(batch: Nest, full: Callable[[], Nest], *, always: bool = False, rows_of_none: bool = False) -> Nest:
    """Call `full`, or return zeros in its place where the share turns out to have no examples.

    An empty share would make statistics NaN, and the gradient of max pooling kills the process on CPU.

    Args:
        batch: the share.
        full: returns a nest of tensors of static shape, and None.
        always: whether it is called for any share.
        rows_of_none: whether it returns outputs [rows, ...] in place of sums.
    """
    if always or tf.nest.flatten(batch)[0].shape[0] is not None:
        return full()
    found: list[Nest] = []

    def some() -> Nest:
        found.append(full())  # the first branch is traced first
        return found[0]

    def nothing() -> Nest:
        return tf.nest.map_structure(lambda t: None if t is None else tf.zeros(of_none(t.shape), t.dtype), found[0])

    def of_none(shape: tf.TensorShape) -> Any:
        return [0, *(size or 0 for size in shape[1:])] if rows_of_none and shape.rank else shape

    return tf.cond(count_examples(batch) > 0, some, nothing)


def weigh_copies(sums: dict[str, Nest], is_all: bool | tf.Tensor) -> dict[str, Nest]:
    """Return what a replica's sums count: all, or as one of N copies where every replica computes all rows."""
    if is_all is False:
        return sums
    replica, replicas = this_replica()
    part = tf.where(is_all, 1 / replicas, 1.0)  # gradient and layer state
    # Loss, examples and metrics of one copy only, which is exact where a sum of thirds is not.
    totals = tf.where(is_all & (replica > 0), 0.0, 1.0)
    weights = {name: totals if name in ("totals", "divisors") else part for name in sums}
    return {
        name: tf.nest.map_structure(lambda t, weight=weights[name]: t * tf.cast(weight, t.dtype), value)
        for name, value in sums.items()
    }
