"""Iterators over the batches of one epoch, as compiled calls take them, and the position in the epoch."""

from __future__ import annotations

import atexit
import functools
import gc
import weakref
from collections.abc import Callable, Hashable, Iterator
from typing import Any, NamedTuple

import tensorflow as tf

from mirrorkit._types import Batch, Nest, Spec
from mirrorkit.data import HOST, bounds, own_rows, untuned
from mirrorkit.errors import StepError
from mirrorkit.train.requirements.data import names_of, with_same_rows
from mirrorkit.train.step.global_batch import GlobalBatch, HostBatch

COMPONENT = "mirrorkit_component_"  # with a number: names the operation that checks the rows of this component
Sizes = tuple[int | None, ...]  # of the batches of one update; None where a size is known only at run time


class UpdateRun(NamedTuple):
    """Successive updates that take batches of the same sizes, so that one compiled function makes all of them."""

    first: int  # number of its first batch in the epoch
    updates: int
    sizes: Sizes

    @property
    def batches(self) -> int:
        """How many batches it takes."""
        return self.updates * len(self.sizes)


class EpochIterator:
    """The batches of an epoch and the number of the next one; the base class for all kinds of data.

    Args:
        source: what a compiled call takes its batches from: a nest of tensors, or an iterator.
        steps: how many batches there are; None where that is unknown.
        size_of: returns how many examples the batch of a number has, or None where that is unknown. Of known sizes only
            the last one of an epoch may be another.
        position: how many batches are done already.

    Attributes:
        element_spec: shapes and dtypes of what `source` yields.
        batch: a function of `source`, a batch number and a size that returns this batch, for use in compiled calls;
            they outlive the iterator.
    """

    kind: Hashable = "host"  # those of one kind share their compiled functions
    on_device = False
    batch: Callable[[Nest, tf.Tensor, Any], GlobalBatch]
    element_spec: Spec

    def __init__(
        self,
        source: Nest,
        *,
        steps: int | None,
        size_of: Callable[[int], int | None],
        position: int = 0,
    ) -> None:
        self.source = source
        self.steps = steps
        self.size_of = size_of
        self.position = position

    @property
    def left(self) -> int | None:
        """How many batches are left; None where that is unknown."""
        return None if self.steps is None else self.steps - self.position

    def parts(self, steps: int, accumulate: int = 1) -> Iterator[UpdateRun]:
        """Divide the next `steps` batches into runs of similar updates.

        Every update takes `accumulate` batches; the last one takes what is left, perhaps with a smaller batch.
        """
        if not steps:
            return
        numbers, updates = range(self.position, self.position + steps), -(-steps // accumulate)
        of_last = numbers[(updates - 1) * accumulate :]
        sizes, last = (tuple(map(self.size_of, batches)) for batches in (numbers[:accumulate], of_last))
        if sizes == last:
            yield UpdateRun(self.position, updates, sizes)
        else:
            yield UpdateRun(self.position, updates - 1, sizes)
            yield UpdateRun(of_last[0], 1, last)


@functools.cache
def _dropped_at_exit() -> weakref.WeakSet[HostIterator]:
    """The iterators that are dropped before Python ends.

    While tf.data waits for Python, for the next element of a generator, say, an iterator that Python's end takes apart
    would wait for ever: https://github.com/tensorflow/tensorflow/issues/21277.
    """
    alive: weakref.WeakSet[HostIterator] = weakref.WeakSet()

    def drop() -> None:
        for iterator in list(alive):
            iterator.source = None  # so that tf.data ends what it is doing
        gc.collect()

    atexit.register(drop)
    return alive


class ReadAhead(NamedTuple):
    """What compiled calls read: a tf.data iterator, and before it a queue of batches that were read from it already."""

    iterator: Any
    queue: tf.Tensor  # its handle

    def get_next_as_optional(self) -> Any:
        """Return the next batch, or nothing at the end of the data; also in compiled calls."""

        def queued() -> Any:
            (found,) = tf.raw_ops.QueueDequeueV2(handle=self.queue, component_types=[tf.variant])
            found.set_shape([])
            return tf.nest.pack_sequence_as(
                tf.OptionalSpec(self.iterator.element_spec), [found], expand_composites=True
            )

        is_queued = tf.raw_ops.QueueSizeV2(handle=self.queue) > 0
        return tf.cond(is_queued, queued, self.iterator.get_next_as_optional)


class HostIterator(EpochIterator):
    """Batches that tf.data makes on the host; `place` are the other arguments of `EpochIterator`.

    With `context` the batches hold the rows of this worker alone.
    """

    def __init__(
        self,
        dataset: tf.data.Dataset,
        *,
        context: tf.distribute.InputContext | None = None,
        **place: Any,
    ) -> None:
        if context is not None:
            self.kind = "rows of a worker"
        self.batch, self.element_spec = functools.partial(_next, context), dataset.element_spec
        with tf.device(HOST):
            self._queue = tf.queue.FIFOQueue(-1, tf.variant)  # of any length
        super().__init__(ReadAhead(iter(untuned(dataset)), self._queue.queue_ref), **place)
        _dropped_at_exit().add(self)

    def look_at(self, number: int, left: int | None = None) -> Batch | None:
        """Read `number` batches, but no more than are left, and keep them for the next update; return the first.

        Reading them a second time would advance a shuffle or a generator of the user's. None is returned where the data
        have ended, or where these batches were looked at before.
        """
        if self._queue.size() > 0:
            return None
        with tf.device(HOST):
            number = number if left is None else min(number, left)
            batches = [self.look_on() for _ in range(number)]
            return batches[0] if batches else None

    def look_on(self) -> Batch | None:
        """Read one batch more, and keep it behind those that were looked at; None where the data have ended."""
        with tf.device(HOST):
            batch = self.source.iterator.get_next_as_optional()
            self._queue.enqueue(tf.nest.flatten(batch, expand_composites=True))
            return batch.get_value() if batch.has_value() else None

    def read(self, number: int) -> Batch | None:
        """Return the next batch, which has this number, outside of a compiled call; None at the end of the data."""
        with tf.device(HOST):
            batch = self.source.get_next_as_optional()
            return batch.get_value() if batch.has_value() else None


def _next(context: tf.distribute.InputContext | None, source: Nest, index: tf.Tensor, size: int | None) -> GlobalBatch:
    with tf.device(HOST):
        batch = source.get_next_as_optional().get_value()
        if size is None:
            return HostBatch(with_same_rows(batch, index))
        first, end = own_rows(size, context)
        return HostBatch(_sized(batch, end - first), size, first)


def _sized(batch: Batch, size: int) -> Batch:
    """Set a static size that the element spec leaves open."""
    tensors = []
    for number, tensor in enumerate(tf.nest.flatten(batch)):
        if tensor.shape[0] not in (None, size):
            raise StepError(other_size(batch, number, tensor.shape[0], size))
        tensors.append(tf.ensure_shape(tensor, [size, *tensor.shape[1:]], name=f"{COMPONENT}{number}"))
    return tf.nest.pack_sequence_as(batch, tensors)


def other_size(element: Nest, number: int, found: object, wanted: object, at: str = "") -> str:
    """Return the error text for a component of a batch with another number of rows than its recipe says."""
    return (
        f"Component {names_of(element)[number]} of a batch has {found} rows{at}, where its recipe says {wanted} "
        "examples. A `map` must keep the number of examples in a batch, and num_examples must be that of the files. "
        "For batches of any size, give a tf.data.Dataset: train.dataset(), mapped."
    )


def shards(batch: Any, count: int) -> list[Any]:
    """Split a batch of arrays or tensors as `count` replicas share it."""
    size = tf.shape(tf.nest.flatten(batch)[0])[0]
    cuts = [slice(*bounds(size, replica, count)) for replica in range(count)]
    return [tf.nest.map_structure(lambda part, cut=cut: part[cut], batch) for cut in cuts]
