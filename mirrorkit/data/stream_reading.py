"""The streams of TFRecord files as tf.data: shuffled in blocks, from which batches take their rows."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from mirrorkit.data.record_index import Segment

_CHUNK = 64  # examples that a stream reads at a time
_GROUP = 1024  # rows that are picked from a block at a time


class StreamPlan(NamedTuple):
    """What to read, as arrays or tensors; only their lengths vary, so that a function of them is traced once.

    A stream first gives its part of the last, smaller batch, then those of whole batches, in blocks. The streams that
    are read are numbered from 0, all streams of the epoch too.

    Attributes:
        compression: "" or "GZIP".
        segments: what the streams read; a column for each attribute of `Segment`, with paths in place of files.
        begins: for each stream that is read, its first segment; and the end, [streams + 1].
        parts: how many examples each stream that is read gives to the last batch, to the first half of a block, to its
            second half, and to those of the next blocks, [streams, 1 + 2 * blocks].
        edges: the first batch of each block, and the end of the whole batches, [blocks + 1].
        number: the number of the first block.
        totals: for each number of all streams from none on, how many examples those give to all whole batches, and to
            the last batch, [2, all streams + 1].
        batches: the number of all whole batches, and 1, [2].
        streams: which of all streams have rows that are asked for, of whole batches and of the last one: the first, and
            the first one that no longer has any, [2, 2].
        rows: of each whole batch and of the last one, the first row that is asked for and the first one no longer asked
            for, [2, 2].
        sizes: how many rows that makes, for the batches in turn, [1 or batches].
        key: seed and epoch, [2].
        most: at least as many examples as any stream gives to a block or to the last batch.
    """

    compression: Any
    segments: tuple[Any, ...]
    begins: Any
    parts: Any
    edges: Any
    number: Any
    totals: Any
    batches: Any
    streams: Any
    rows: Any
    sizes: Any
    key: Any
    most: Any


def read_streams(plan: StreamPlan, static_size: int | None) -> tf.data.Dataset:
    """Give a vector of serialized examples for each batch from the first edge on.

    At most two blocks are in memory: one from which batches are taken, and the streams' parts of the next one.

    Args:
        plan: what to read.
        static_size: how many rows are asked for of every batch; None where the last one has others.
    """
    variant = tf.data.experimental.to_variant(_read(plan))
    return tf.data.experimental.from_variant(variant, tf.TensorSpec([static_size], tf.string))


def table_of(segments: Sequence[Segment], files: Sequence[str]) -> tuple[Any, ...]:
    """Return the columns of some segments: path, offset, skip, size, buffer."""
    numbers, *columns = zip(*segments, strict=True)
    return (np.array([files[number] for number in numbers]), *(np.array(column, np.int64) for column in columns))


@tf.autograph.experimental.do_not_convert
def read_segment(
    compression: Any, file: tf.Tensor, offset: tf.Tensor, skip: tf.Tensor, size: tf.Tensor, buffer: tf.Tensor
) -> tf.data.Dataset:
    """Read the examples of a segment, whose columns are arguments: with `tf.unstack` here, TensorFlow 2.21 crashes."""
    if not hasattr(tf.raw_ops, "TFRecordDatasetV2"):
        return tf.data.TFRecordDataset(file, compression, buffer).skip(skip).take(size)
    variant = tf.raw_ops.TFRecordDatasetV2(  # tf.data.TFRecordDataset takes no offsets
        filenames=[file], compression_type=compression, buffer_size=buffer, byte_offsets=[offset]
    )
    return tf.data.experimental.from_variant(variant, tf.TensorSpec([], tf.string)).skip(skip).take(size)


def in_parallel(together: Any) -> dict[str, Any]:
    """Arguments of `tf.data.Dataset.interleave` for an order that is always the same."""
    return {"cycle_length": together, "num_parallel_calls": tf.data.AUTOTUNE, "deterministic": True}


def _integers(*shape: int | None) -> tf.TensorSpec:
    return tf.TensorSpec(shape, tf.int64)


_SPEC = StreamPlan(
    compression=tf.TensorSpec([], tf.string),
    segments=(tf.TensorSpec([None], tf.string), *[_integers(None)] * 4),
    begins=_integers(None),
    parts=_integers(None, None),
    edges=_integers(None),
    number=_integers(),
    totals=_integers(2, None),
    batches=_integers(2),
    streams=_integers(2, 2),
    rows=_integers(2, 2),
    sizes=_integers(None),
    key=_integers(2),
    most=_integers(),
)


@tf.function(input_signature=[_SPEC], autograph=False)
def _read(plan: StreamPlan) -> tf.data.Dataset:
    """Make the dataset of a plan; an epoch begins without tracing this again.

    What a stream has read goes through no function there: each of the streams would make kernels of its own for it.
    """
    segments = tf.data.Dataset.from_tensor_slices(plan.segments)

    def stream(begin: tf.Tensor, end: tf.Tensor, parts: tf.Tensor) -> tf.data.Dataset:
        own = segments.skip(begin).take(end - begin)
        examples = own.flat_map(functools.partial(read_segment, plan.compression))
        # without take, vectors of no examples would never end
        return _rebatch(examples.batch(_CHUNK), parts).take(tf.size(parts, tf.int64))

    streams = tf.data.Dataset.from_tensor_slices((plan.begins[:-1], plan.begins[1:], plan.parts))
    together = tf.size(plan.begins, tf.int64) - 1
    given = tf.reduce_sum(plan.parts, 0)
    sizes = tf.concat([given[:1], tf.reduce_sum(tf.reshape(given[1:], [-1, 2]), 1)], 0)
    blocks = _rebatch(streams.interleave(stream, **in_parallel(together)), sizes)

    def shuffled(block: tf.Tensor, serialized: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return serialized, _places(plan, block)

    def groups(serialized: tf.Tensor, places: tf.Tensor) -> tf.data.Dataset:
        starts = tf.data.Dataset.range(0, tf.size(places, tf.int64), _GROUP)
        return tf.data.Dataset.zip((starts, tf.data.Dataset.from_tensors((serialized, places)).repeat()))

    def pick(start: tf.Tensor, block: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
        serialized, places = block
        return tf.gather(serialized, places[start : start + _GROUP])

    in_order = _first_last(blocks, sizes).enumerate().map(shuffled).flat_map(groups).map(pick)
    return _rebatch(in_order, plan.sizes)


def _first_last(vectors: tf.data.Dataset, sizes: tf.Tensor) -> tf.data.Dataset:
    """Give the first one of some vectors after all others; check their sizes."""
    nothing = tf.zeros([0], tf.string)

    def step(first: tf.Tensor, element: tuple[tuple[tf.Tensor, tf.Tensor], tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
        (number, size), serialized = element
        complete = tf.debugging.Assert(
            tf.size(serialized, tf.int64) == size,
            ["The files hold fewer examples than num_examples says; a block should have", size],
        )
        with tf.control_dependencies([complete]):
            serialized = tf.identity(serialized)
        first = tf.cond(number == 0, lambda: serialized, lambda: first)
        return first, tf.cond(number == tf.size(sizes, tf.int64), lambda: first, lambda: serialized)

    numbered = tf.data.Dataset.from_tensor_slices(tf.concat([sizes, [0]], 0)).enumerate()
    ended = vectors.concatenate(tf.data.Dataset.from_tensors(nothing))
    return tf.data.Dataset.zip((numbered, ended)).scan(nothing, step).skip(1)


def _places(plan: StreamPlan, block: tf.Tensor) -> tf.Tensor:
    """Shuffle what each stream gives to a block; of all batches of the block, say where the rows asked for are.

    The last batch is a block, after those of the whole batches.
    """
    whole = block < tf.size(plan.edges, tf.int64) - 1
    kind = tf.cast(~whole, tf.int64)
    begin = tf.where(whole, plan.edges[block], 0)
    end = tf.where(whole, plan.edges[tf.minimum(block + 1, tf.size(plan.edges, tf.int64) - 1)], 1)
    streams, rows = plan.streams[kind], plan.rows[kind]
    totals = plan.totals[kind, streams[0] : streams[1] + 1]
    taken = totals[:, None] * tf.range(begin, end + 1) // tf.maximum(plan.batches[kind], 1)
    given = taken[1:] - taken[:-1]
    counts = given[:, -1] - given[:, 0]
    # random numbers for all streams, since the order must not depend on which of them are read
    key = tf.random.experimental.stateless_fold_in(plan.key, plan.number + block)
    drawn = tf.random.stateless_uniform([tf.shape(plan.totals, tf.int64)[1] - 1, plan.most], key, None, None, tf.int32)
    drawn = tf.where(tf.sequence_mask(counts, plan.most), drawn[streams[0] : streams[1]], tf.int32.max)
    order = tf.cast(tf.argsort(drawn), tf.int64) + tf.cumsum(counts, exclusive=True)[:, None]
    # the block holds the first halves of all streams, then the second ones
    halves = tf.gather(given, [0, (end - begin + 1) // 2, end - begin], axis=1)
    halves = tf.reshape(tf.transpose(halves[:, 1:] - halves[:, :-1]), [-1])
    by_stream = tf.argsort(tf.repeat(tf.tile(tf.range(tf.size(counts)), [2]), halves), stable=True)
    first_rows = taken[:, 1:] - taken[:, :-1]  # of each stream in each batch, and of the one after
    asked = tf.range(rows[0], rows[1])
    asked = tf.broadcast_to(asked, [tf.shape(first_rows)[1], tf.size(asked)])
    stream = tf.searchsorted(tf.transpose(first_rows[1:]), asked, side="right", out_type=tf.int64)
    offsets = tf.transpose(given[:, :-1] - given[:, :1] - first_rows[:-1])
    number = asked + tf.gather(offsets, stream, batch_dims=1)  # within what a stream gives to the block
    return tf.reshape(tf.gather(by_stream, tf.gather_nd(order, tf.stack([stream, number], axis=-1))), [-1])


def _rebatch(vectors: tf.data.Dataset, sizes: tf.Tensor) -> tf.data.Dataset:
    """Do what `tf.data.Dataset.rebatch` does, which runs a function for every element."""
    variant = tf.raw_ops.RebatchDatasetV2(
        input_dataset=tf.data.experimental.to_variant(vectors),
        batch_sizes=sizes,
        drop_remainder=False,
        output_types=[tf.string],
        output_shapes=[[None]],
    )
    return tf.data.experimental.from_variant(variant, tf.TensorSpec([None], tf.string))
