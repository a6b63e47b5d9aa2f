"""Serialized examples from files as tf.data: of each batch the rows that are asked for, in the order of the batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from mirrorkit.data.record_index import RecordIndex, Segment
from mirrorkit.data.record_streams import Streams, remaining

_OPEN_FILES = 16  # read at the same time, unshuffled
_CHUNK = 64  # examples that a stream reads at a time


@dataclass(frozen=True)
class Share:
    """The rows of every batch that are asked for.

    Attributes:
        batch_size: examples in a whole batch.
        batches: whole batches in an epoch.
        rest: examples in the last, smaller batch; 0 where there is none.
        rows: the rows of a whole batch: the first, and the first one no longer asked for.
        last_rows: the same of the last, smaller batch.
    """

    batch_size: int
    batches: int
    rest: int
    rows: tuple[int, int]
    last_rows: tuple[int, int]

    @property
    def steps(self) -> int:
        """The number of batches in an epoch."""
        return self.batches + (self.rest > 0)


@dataclass(frozen=True)
class RecordReader:
    """Reads the files of a set; both orders give a vector of serialized examples for each batch from `start` on."""

    files: Sequence[str]
    compression: str
    index: RecordIndex

    def as_written(self, share: Share, start: int) -> tf.data.Dataset:
        """Read up to 16 files in turn, one example of each; what others ask for is read too, and dropped."""
        if start == share.steps:
            return _nothing(share)
        together, first = min(len(self.files), _OPEN_FILES), start * share.batch_size
        if not first:
            read = tf.data.Dataset.from_tensor_slices(list(self.files)).interleave(
                lambda file: tf.data.TFRecordDataset(file, self.compression), **_in_parallel(together)
            )
        elif self.index.known or not self.index.reads_through:
            pieces = remaining(self.index.counts, together, first)
            segments = [self.index.segment(*piece) for piece in pieces]
            read = self._interleave(segments, min(len(segments), together))
        else:
            return self.as_written(share, 0).skip(start)
        limit = share.batches * share.batch_size + share.rest - first
        vectors = read.take(limit).batch(share.batch_size, drop_remainder=not share.rest)
        if (share.rows, share.last_rows) == ((0, share.batch_size), (0, share.rest)):
            return vectors
        bounds = tf.constant([share.rows, share.last_rows], tf.int64)

        def own(step: tf.Tensor, serialized: tf.Tensor) -> tf.Tensor:
            if not share.rest:
                return serialized[slice(*share.rows)]
            rows = bounds[tf.cast(step >= share.batches, tf.int32)]
            return serialized[rows[0] : rows[1]]

        return tf.data.Dataset.zip((tf.data.Dataset.range(start, share.steps), vectors)).map(own)

    def shuffled(
        self, streams: Streams, share: Share, start: int, *, seed: int, epoch: int, shuffle_buffer: int
    ) -> tf.data.Dataset:
        """Read the streams that have rows which are asked for, and shuffle each in blocks of so many batches.

        A block is what all streams give to as many batches as fill the buffer. So the place of an example depends
        neither on who asks nor on `start`.
        """
        per_block = max(1, min(shuffle_buffer // share.batch_size, streams.batches))
        order = _Order(streams, np.array([seed, epoch], np.int64), per_block)
        parts = []
        if start < streams.batches:
            parts.append(self._whole_batches(order, share.rows, start))
        if share.rest and start <= streams.batches:
            parts.append(self._last_batch(order, share.last_rows))
        if not parts:
            return _nothing(share)
        return parts[0] if len(parts) == 1 else parts[0].concatenate(parts[1])

    def _whole_batches(self, order: _Order, rows: tuple[int, int], start: int) -> tf.data.Dataset:
        streams, per_block = order.streams, order.per_block
        own, first = streams.of_rows(*rows), start // per_block
        edges = np.minimum(np.arange(first, order.blocks + 1) * per_block, streams.batches)
        given = np.diff(streams.taken(edges), axis=0)  # by each stream, before each block
        segments, begins = list[Segment](), [0]
        for stream in own:
            head = streams.last[stream + 1] - streams.last[stream]
            end = head + streams.whole[stream + 1] - streams.whole[stream]
            pieces = streams.part(stream, int(head + given[stream, 0]), int(end))
            segments += [self.index.segment(*piece) for piece in pieces]
            begins.append(len(segments))
        places, sizes = np.array(begins, np.int64), np.diff(given[own.start : own.stop])
        table = self._table(segments)

        def stream_of(begin: tf.Tensor, number: tf.Tensor, sizes: tf.Tensor) -> tf.data.Dataset:
            read = table.skip(begin).take(number).flat_map(self._read)
            return read.batch(_CHUNK).rebatch(sizes).take(order.blocks - first)

        blocks = (
            tf.data.Dataset.from_tensor_slices((places[:-1], np.diff(places), sizes))
            .interleave(tf.autograph.experimental.do_not_convert(stream_of), **_in_parallel(len(own)))
            .rebatch(sizes.sum(axis=0))
        )
        whole = tf.constant(streams.whole[own.start : own.stop + 1])

        def pick(block: tf.Tensor, serialized: tf.Tensor) -> tf.Tensor:
            batches = tf.range(block * per_block, tf.minimum((block + 1) * per_block, streams.batches) + 1)
            return order.rows(block, serialized, whole[:, None] * batches // streams.batches, own, rows)

        return (
            tf.data.Dataset.zip((tf.data.Dataset.range(first, order.blocks), blocks))
            .map(tf.autograph.experimental.do_not_convert(pick))
            .rebatch(rows[1] - rows[0], drop_remainder=True)
            .skip(start - first * per_block)
        )

    def _last_batch(self, order: _Order, rows: tuple[int, int]) -> tf.data.Dataset:
        own = order.streams.of_last_rows(*rows)
        last = order.streams.last[own.start : own.stop + 1]
        heads = [order.streams.part(stream, 0, int(size)) for stream, size in zip(own, np.diff(last), strict=True)]
        segments = [self.index.segment(*piece) for pieces in heads for piece in pieces]
        # a block as long as any segment: one whole segment after another, with several open
        longest = max(segment.size for segment in segments)
        read = self._interleave(segments, min(len(segments), _OPEN_FILES), longest)
        taken = np.stack([np.zeros_like(last), last], axis=1)

        def pick(serialized: tf.Tensor) -> tf.Tensor:
            return order.rows(order.blocks, serialized, taken, own, rows)

        return read.batch(int(last[-1] - last[0])).map(tf.autograph.experimental.do_not_convert(pick))

    def _interleave(self, segments: Sequence[Segment], together: int, block_length: int = 1) -> tf.data.Dataset:
        return self._table(segments).interleave(self._read, **_in_parallel(together, block_length))

    def _table(self, segments: Sequence[Segment]) -> tf.data.Dataset:
        files, *columns = zip(*segments, strict=True)
        paths = [self.files[file] for file in files]
        return tf.data.Dataset.from_tensor_slices((paths, *(np.array(column, np.int64) for column in columns)))

    @tf.autograph.experimental.do_not_convert
    def _read(
        self, file: tf.Tensor, offset: tf.Tensor, skip: tf.Tensor, size: tf.Tensor, buffer: tf.Tensor
    ) -> tf.data.Dataset:
        """The examples of a segment, whose columns are arguments: with `tf.unstack` here, TensorFlow 2.21 crashes."""
        if not hasattr(tf.raw_ops, "TFRecordDatasetV2"):
            return tf.data.TFRecordDataset(file, self.compression, buffer).skip(skip).take(size)
        variant = tf.raw_ops.TFRecordDatasetV2(  # tf.data.TFRecordDataset takes no offsets
            filenames=[file], compression_type=self.compression, buffer_size=buffer, byte_offsets=[offset]
        )
        return tf.data.experimental.from_variant(variant, tf.TensorSpec([], tf.string)).skip(skip).take(size)


@dataclass(frozen=True)
class _Order:
    """The shuffled order of an epoch.

    Attributes:
        streams: all streams of the epoch.
        key: seed and epoch.
        per_block: whole batches in a block.
    """

    streams: Streams
    key: np.ndarray
    per_block: int

    @property
    def blocks(self) -> int:
        """The number of blocks of whole batches."""
        return -(-self.streams.batches // self.per_block)

    def rows(
        self, block: tf.Tensor | int, serialized: tf.Tensor, taken: Any, own: range, rows: tuple[int, int]
    ) -> tf.Tensor:
        """Pick some rows of each batch of a block; see `_pick`."""
        # at least as many examples as any stream gives to a block, whole batches or the last one
        whole = -(-np.diff(self.streams.whole) * self.per_block // self.streams.batches) + 1
        most = max(whole.max(), np.diff(self.streams.last).max())
        shape = np.array([len(self.streams.pieces), most], np.int32)
        return _pick(serialized, taken, block, self.key, shape, own.start, *rows)


@tf.function(
    autograph=False,
    input_signature=[
        tf.TensorSpec([None], tf.string),
        tf.TensorSpec([None, None], tf.int64),
        tf.TensorSpec([], tf.int64),
        tf.TensorSpec([2], tf.int64),
        tf.TensorSpec([2], tf.int32),
        *[tf.TensorSpec([], tf.int64)] * 3,
    ],
)
def _pick(
    serialized: tf.Tensor,
    taken: tf.Tensor,
    block: tf.Tensor,
    key: tf.Tensor,
    shape: tf.Tensor,
    first_stream: tf.Tensor,
    first_row: tf.Tensor,
    end_row: tf.Tensor,
) -> tf.Tensor:
    """Shuffle what each stream gives to a block, and pick some rows of each batch of it, all in one vector.

    Traced once: the steps of a training wait while an epoch's dataset is made.

    Args:
        serialized: the examples that some streams give to the block, one stream after another.
        taken: how many examples the streams before each of them, and before the one after them, have given before each
            batch of the block and after the last, [streams + 1, batches + 1].
        block: the number of the block.
        key: seed and epoch.
        shape: the number of all streams, and at least as many examples as each of them gives to a block.
        first_stream: the number of the first stream that is there.
        first_row: the first row to pick.
        end_row: the first one no longer to pick.
    """
    given = taken[1:] - taken[:-1]
    counts = given[:, -1] - given[:, 0]
    complete = tf.debugging.Assert(
        tf.reduce_sum(counts) == tf.size(serialized, tf.int64),
        ["The files hold fewer examples than num_examples says; a block should have", tf.reduce_sum(counts)],
    )
    with tf.control_dependencies([complete]):  # or the gather below may say so first, in other words
        serialized = tf.identity(serialized)
    # random numbers for all streams, since the order must not depend on which of them are read
    key = tf.random.experimental.stateless_fold_in(key, block)
    drawn = tf.random.stateless_uniform(shape, key, None, None, tf.int32)
    drawn = drawn[first_stream : first_stream + tf.size(counts, tf.int64)]
    drawn = tf.where(tf.sequence_mask(counts, shape[1]), drawn, tf.int32.max)
    order = tf.cast(tf.argsort(drawn), tf.int64) + tf.cumsum(counts, exclusive=True)[:, None]
    first_rows = taken[:, 1:] - taken[:, :-1]  # of each stream in each batch, and of the one after
    asked = tf.range(first_row, end_row)
    asked = tf.broadcast_to(asked, [tf.shape(first_rows)[1], tf.size(asked)])
    stream = tf.searchsorted(tf.transpose(first_rows[1:]), asked, side="right", out_type=tf.int64)
    offsets = tf.transpose(given[:, :-1] - given[:, :1] - first_rows[:-1])
    number = asked + tf.gather(offsets, stream, batch_dims=1)  # within what a stream gives to the block
    places = tf.gather_nd(order, tf.stack([stream, number], axis=-1))
    return tf.gather(serialized, tf.reshape(places, [-1]))


def _nothing(share: Share) -> tf.data.Dataset:
    none = tf.data.Dataset.from_tensor_slices(tf.zeros([0], tf.string))
    return none.batch(share.rows[1] - share.rows[0], drop_remainder=not share.rest)


def _in_parallel(together: int, block_length: int = 1) -> dict[str, Any]:
    return {
        "cycle_length": together,
        "block_length": block_length,
        "num_parallel_calls": tf.data.AUTOTUNE,
        "deterministic": True,
    }
