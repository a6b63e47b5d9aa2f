"""Serialized examples from files as tf.data: of each batch the rows that are asked for, in the order of the batch."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from mirrorkit.data.augment import RowsToMake
from mirrorkit.data.record_index import RecordIndex, Segment, columns
from mirrorkit.data.record_lengths import BUFFER
from mirrorkit.data.record_streams import Streams, remaining
from mirrorkit.data.remote_files import RemoteFile, copied

_OPEN_FILES = 16  # read at the same time, unshuffled


RowRanges = tuple[RowsToMake, RowsToMake]  # of a whole batch those that are asked for, and of the last, smaller one


def as_written(index: RecordIndex, rows: RowRanges, batches: int, start: int) -> tf.data.Dataset:
    """Give a vector of serialized examples for each batch from `start` on, of up to 16 files one example in turn.

    What others ask for is read too, and dropped.
    """
    whole, last = rows
    together, first = min(len(index.files), _OPEN_FILES), start * whole.size
    if index.is_remote and (index.known or not first):
        read = _remote_as_written(index, together, first)
    elif not first:
        read = tf.data.Dataset.from_tensor_slices(list(index.files)).interleave(
            lambda file: tf.data.TFRecordDataset(file, index.compression), **_in_parallel(together)
        )
    elif index.known or not index.reads_through:
        pieces = remaining(index.counts, together, first)
        segments = columns([index.segment(*piece) for piece in pieces])
        read = tf.data.Dataset.from_tensor_slices(segments).interleave(
            functools.partial(_read_segment, index.compression), **_in_parallel(min(len(pieces), together))
        )
    else:
        return as_written(index, rows, batches, 0).skip(start)
    limit = batches * whole.size + last.size - first
    vectors = read.take(limit).batch(whole.size, drop_remainder=not last.size)
    if (whole.made, last.made) == ((0, whole.size), (0, last.size)):
        return vectors
    bounds = tf.constant([whole.made, last.made], tf.int64)

    def own(step: tf.Tensor, serialized: tf.Tensor) -> tf.Tensor:
        if not last.size:
            return serialized[slice(*whole.made)]
        first, end = tf.unstack(bounds[tf.cast(step >= batches, tf.int32)])
        return serialized[first:end]

    return vectors.enumerate(start).map(own)


def _remote_as_written(index: RecordIndex, together: int, first: int) -> tf.data.Dataset:
    """Give the examples of files at addresses, one example of each in turn."""
    if index.known:
        by_file = [index.segments(*piece) for piece in remaining(index.counts, together, first)]
    else:  # to know where an example begins is to read everything through
        by_file = [[index.whole(file)] for file in range(len(index.files))]
    begins = np.cumsum([0, *map(len, by_file)])
    segments = tuple(map(tf.constant, columns([segment for of_file in by_file for segment in of_file])))

    @tf.autograph.experimental.do_not_convert
    def of_file(begin: tf.Tensor, end: tf.Tensor) -> tf.data.Dataset:
        own = _copies(*(column[begin:end] for column in segments))
        return own.flat_map(functools.partial(_read_segment, index.compression))

    ranges = tf.data.Dataset.from_tensor_slices((begins[:-1], begins[1:]))
    return ranges.interleave(of_file, **_in_parallel(min(len(by_file), together)))


def shuffled(
    index: RecordIndex, streams: Streams, rows: RowRanges, start: int, *, seed: int, epoch: int, shuffle_buffer: int
) -> tf.data.Dataset:
    """Give a vector of serialized examples for each batch from `start` on, of streams that are shuffled in blocks.

    A block is what a stream gives to as many batches as fill half of the buffer: the next one is read while one is
    used up. So the place of an example depends neither on who asks nor on `start`. The last, smaller batch is a block
    of its own.
    """
    whole, last = streams.whole, streams.last
    per_block = max(1, min(shuffle_buffer // 2 // rows[0].size, whole.number))
    block = start // per_block if start < whole.number else -(-start // per_block)
    edges = np.array([*range(block * per_block, whole.number, per_block), whole.number])
    own = [whole.streams_of(*rows[0].made) if start < whole.number else range(0), range(0)]
    if rows[1].size:
        own[1] = last.streams_of(*rows[1].made)
    # at least as many as any stream gives to a block of whole batches
    most = (-(-np.diff(whole.totals) * per_block // whole.number) + 1).max()
    plan = _Plan(
        compression=index.compression,
        **_what_to_read(index, streams, own, edges),
        blocks=np.array([*((0, *ends) for ends in itertools.pairwise(edges)), (1, 0, 1)]),
        number=np.array(block),
        totals=np.stack([whole.totals, last.totals]),
        batches=np.array([whole.number, 1]),
        streams=np.array([[streams.start, streams.stop] for streams in own]),
        rows=np.array([of_kind.made for of_kind in rows]),
        key=np.array([seed, epoch]),
        most=max(most, np.diff(last.totals).max()),
    )
    variant = tf.data.experimental.to_variant(_read_remote(plan) if index.is_remote else _read(plan))
    spec = tf.TensorSpec([None if rows[1].size else rows[0].made_end - rows[0].made_first], tf.string)
    vectors = tf.data.experimental.from_variant(variant, spec).take(whole.number - edges[0] + (rows[1].size > 0))
    return vectors.skip(start - edges[0])


class _Plan(NamedTuple):
    """What to read, and how to shuffle it. The defaults are a signature: one trace serves all plans.

    A stream first gives its part of the last, smaller batch, which is a block of its own and comes out last, then those
    of the blocks of whole batches. The streams that are read are numbered from 0, all streams of the epoch too.
    """

    compression: Any = tf.TensorSpec([], tf.string)  # "" or "GZIP"
    # what the streams read: a column for each attribute of `Segment`; each stream's first one, and the end
    segments: Any = (tf.TensorSpec([None], tf.string), *[tf.TensorSpec([None], tf.int64)] * 4)
    begins: Any = tf.TensorSpec([None], tf.int64)
    # how many examples each stream that is read gives to the two halves of each block, as they are read
    halves: Any = tf.TensorSpec([None, None], tf.int64)
    # of each block, as they come out: 0, or 1 for the last batch; its first batch of that kind, and the end
    blocks: Any = tf.TensorSpec([None, 3], tf.int64)
    number: Any = tf.TensorSpec([], tf.int64)  # of the first block
    # of whole batches and of the last one: for each number of all streams from none on, how many examples those give
    totals: Any = tf.TensorSpec([2, None], tf.int64)
    batches: Any = tf.TensorSpec([2], tf.int64)  # how many there are
    # those of all streams, and of a batch's rows, that are asked for: the first, and the first one that is not
    streams: Any = tf.TensorSpec([2, 2], tf.int64)
    rows: Any = tf.TensorSpec([2, 2], tf.int64)
    key: Any = tf.TensorSpec([2], tf.int64)  # seed and epoch
    most: Any = tf.TensorSpec([], tf.int64)  # at least as many examples as any stream gives to a block


def _what_to_read(index: RecordIndex, streams: Streams, own: Sequence[range], edges: np.ndarray) -> dict[str, Any]:
    """Return `segments`, `begins` and `halves` of a plan, for the streams that whole batches and the last one need."""
    heads = np.diff(streams.last.totals)
    bounds = np.sort([*edges, *(edges[:-1] + edges[1:] + 1) // 2])
    ends = heads[:, None] + np.diff(streams.whole.taken(bounds), axis=0)  # of each stream before each bound
    by_stream, halves = list[list[Segment]](), list[np.ndarray]()
    for stream in sorted({*own[0], *own[1]}):
        in_whole, in_last = stream in own[0], stream in own[1]
        head, begin, end = heads[stream].item(), ends[stream, 0].item(), ends[stream, -1].item()
        spans = [(0, head)] * in_last + [(begin, end)] * in_whole
        if spans == [(0, head), (head, end)]:  # a compressed file is read once
            spans = [(0, end)]
        pieces = [piece for span in spans for piece in streams.part(stream, *span)]
        by_stream.append([segment for piece in pieces for segment in index.segments(*piece)])
        halves.append(np.array([head * in_last, 0, *np.diff(ends[stream]) * in_whole]))
    segments = columns([segment for of_stream in by_stream for segment in of_stream])
    return {"segments": segments, "begins": np.cumsum([0, *map(len, by_stream)]), "halves": np.stack(halves)}


def _in_parallel(together: Any) -> dict[str, Any]:
    """Arguments of `tf.data.Dataset.interleave` for an order that is always the same."""
    return {"cycle_length": together, "num_parallel_calls": tf.data.AUTOTUNE, "deterministic": True}


@tf.autograph.experimental.do_not_convert
def _read_segment(
    compression: Any, path: tf.Tensor, offset: tf.Tensor, skip: tf.Tensor, size: tf.Tensor, buffer: tf.Tensor
) -> tf.data.Dataset:
    """Read the examples of a segment, whose columns are arguments: with `tf.unstack` here, TensorFlow 2.21 crashes."""
    variant = tf.raw_ops.TFRecordDatasetV2(  # tf.data.TFRecordDataset takes no offsets
        filenames=[path], compression_type=compression, buffer_size=buffer, byte_offsets=[offset]
    )
    return tf.data.experimental.from_variant(variant, tf.TensorSpec([], tf.string)).skip(skip).take(size)


def _make(plan: _Plan, *, is_remote: bool) -> tf.data.Dataset:
    """Make the dataset of a plan; an epoch begins without tracing this again.

    At most two blocks are in memory: one from which batches are taken, and the streams' parts of the next one. What a
    stream has read goes through no function there: each of the streams would make kernels of its own for it.
    """
    segments = tf.data.Dataset.from_tensor_slices(plan.segments)

    def stream(begin: tf.Tensor, end: tf.Tensor, halves: tf.Tensor) -> tf.data.Dataset:
        if is_remote:
            own = _copies(*(column[begin:end] for column in plan.segments))
        else:
            own = segments.skip(begin).take(end - begin)
        examples = own.flat_map(functools.partial(_read_segment, plan.compression))
        # one by one, since TensorFlow logs an error for each slice of a longer vector; without take, vectors of no
        # examples would never end
        return _rebatch(examples.batch(1), halves).take(tf.size(halves, tf.int64))

    streams = tf.data.Dataset.from_tensor_slices((plan.begins[:-1], plan.begins[1:], plan.halves))
    together = tf.size(plan.begins, tf.int64) - 1
    sizes = tf.reduce_sum(tf.reshape(tf.reduce_sum(plan.halves, 0), [-1, 2]), 1)
    blocks = _rebatch(streams.interleave(stream, **_in_parallel(together)), sizes)
    nothing = tf.zeros([0], tf.string)

    def turned(held: tf.Tensor, element: tuple[tf.Tensor, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
        number, serialized = element
        held = tf.cond(number == 0, lambda: serialized, lambda: held)
        return held, tf.cond(number == tf.size(sizes, tf.int64), lambda: held, lambda: serialized)

    def shuffled(block: tf.Tensor, element: tuple[tf.Tensor, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
        size, serialized = element
        words = "The files hold fewer examples than num_examples says; a block should have"
        with tf.control_dependencies([tf.debugging.Assert(tf.size(serialized, tf.int64) == size, [words, size])]):
            return tf.identity(serialized), _places(plan, block)

    def batches(serialized: tf.Tensor, places: tf.Tensor) -> tf.data.Dataset:
        own = tf.data.Dataset.from_tensor_slices(places)
        return tf.data.Dataset.zip((tf.data.Dataset.from_tensors(serialized).repeat(), own))

    # the first one comes last; where examples are missing, they are missing at the end
    blocks = blocks.concatenate(tf.data.Dataset.from_tensors(nothing)).enumerate().scan(nothing, turned).skip(1)
    sized = tf.data.Dataset.zip((tf.data.Dataset.from_tensor_slices(tf.roll(sizes, -1, 0)), blocks))
    return sized.enumerate().map(shuffled).flat_map(batches).map(tf.gather)


_traced_once = functools.partial(tf.function, input_signature=[_Plan()], autograph=False)
_read = _traced_once(functools.partial(_make, is_remote=False))
_read_remote = _traced_once(functools.partial(_make, is_remote=True))


@tf.autograph.experimental.do_not_convert
def _copies(*segments: tf.Tensor) -> tf.data.Dataset:
    """Give segments of copies for those at addresses, whose columns are the arguments; each stays while it is read."""

    def give(*columns: np.ndarray) -> Iterator[tuple[Any, ...]]:
        for text, offset, skip, size, length in zip(*columns, strict=True):
            with copied(RemoteFile.of_text(text.decode()), offset, offset + length) as path:
                yield path, 0, skip, size, BUFFER

    signature = (tf.TensorSpec([], tf.string), *[tf.TensorSpec([], tf.int64)] * (len(segments) - 1))
    return tf.data.Dataset.from_generator(give, args=segments, output_signature=signature)


def _places(plan: _Plan, block: tf.Tensor) -> tf.Tensor:
    """Shuffle what each stream gives to a block; of each batch of the block, say where the rows asked for are."""
    kind, begin, end = tf.unstack(plan.blocks[block])
    streams, rows = plan.streams[kind], plan.rows[kind]
    totals = plan.totals[kind, streams[0] : streams[1] + 1]
    taken = totals[:, None] * tf.range(begin, end + 1) // plan.batches[kind]
    given = taken[1:] - taken[:-1]
    counts = given[:, -1] - given[:, 0]
    # random numbers for all streams, since the order must not depend on which of them are read
    key = tf.random.experimental.stateless_fold_in(plan.key, plan.number + block)
    drawn = tf.random.stateless_uniform([tf.shape(plan.totals, tf.int64)[1] - 1, plan.most], key, None, None, tf.int32)
    drawn = tf.where(tf.sequence_mask(counts, plan.most), drawn[streams[0] : streams[1]], tf.int32.max)
    order = tf.cast(tf.argsort(drawn), tf.int64) + tf.cumsum(counts, exclusive=True)[:, None]
    # the block holds the first halves of all streams, then the second ones
    place = (block + 1) % tf.shape(plan.blocks, tf.int64)[0]  # among the blocks as they are read
    halves = tf.reshape(tf.transpose(plan.halves[:, 2 * place : 2 * place + 2]), [-1])
    by_stream = tf.argsort(tf.repeat(tf.tile(tf.range(tf.size(halves) // 2), [2]), halves), stable=True)
    first_rows = taken[:, 1:] - taken[:, :-1]  # of each stream in each batch, and of the one after
    asked = tf.range(rows[0], rows[1])
    asked = tf.broadcast_to(asked, [tf.shape(first_rows)[1], tf.size(asked)])
    stream = tf.searchsorted(tf.transpose(first_rows[1:]), asked, side="right", out_type=tf.int64)
    offsets = tf.transpose(given[:, :-1] - given[:, :1] - first_rows[:-1])
    number = asked + tf.gather(offsets, stream, batch_dims=1)  # within what a stream gives to the block
    return tf.gather(by_stream, tf.gather_nd(order, tf.stack([stream, number], axis=-1)))


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
