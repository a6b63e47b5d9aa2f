"""Serialized examples from files as tf.data: of each batch the rows that are asked for, in the order of the batch."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from mirrorkit.data.record_index import RecordIndex, Segment
from mirrorkit.data.record_streams import Streams, remaining
from mirrorkit.data.stream_reading import StreamPlan, in_parallel, read_segment, read_streams, table_of

_OPEN_FILES = 16  # read at the same time, unshuffled


@dataclass(frozen=True)
class WantedRows:
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

    def as_written(self, share: WantedRows, start: int) -> tf.data.Dataset:
        """Read up to 16 files in turn, one example of each; what others ask for is read too, and dropped."""
        if start == share.steps:
            return _nothing(share)
        together, first = min(len(self.files), _OPEN_FILES), start * share.batch_size
        if not first:
            read = tf.data.Dataset.from_tensor_slices(list(self.files)).interleave(
                lambda file: tf.data.TFRecordDataset(file, self.compression), **in_parallel(together)
            )
        elif self.index.known or not self.index.reads_through:
            pieces = remaining(self.index.counts, together, first)
            segments = [self.index.segment(*piece) for piece in pieces]
            read = tf.data.Dataset.from_tensor_slices(table_of(segments, self.files)).interleave(
                functools.partial(read_segment, self.compression), **in_parallel(min(len(segments), together))
            )
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
        self, streams: Streams, share: WantedRows, start: int, *, seed: int, epoch: int, shuffle_buffer: int
    ) -> tf.data.Dataset:
        """Read the streams that have rows which are asked for, each shuffled in blocks.

        A block is what a stream gives to as many batches as fill half of the buffer: the next one is read while one is
        used up. So the place of an example depends neither on who asks nor on `start`.
        """
        if start == share.steps:
            return _nothing(share)
        whole, last = streams.whole, streams.last
        per_block = max(1, min(shuffle_buffer // 2 // share.batch_size, whole.number))
        block = start // per_block if start < whole.number else -(-whole.number // per_block)
        edges = np.array([*range(block * per_block, whole.number, per_block), whole.number])
        own = [whole.streams_of(*share.rows) if start < whole.number else range(0), range(0)]
        if share.rest:
            own[1] = last.streams_of(*share.last_rows)
        parts = self._parts(streams, own, edges)
        # at least as many as any stream gives to a block of whole batches
        most = (-(-np.diff(whole.totals) * per_block // max(1, whole.number)) + 1).max()
        counts = [end - first for first, end in (share.rows, share.last_rows)]
        plan = StreamPlan(
            compression=self.compression,
            **parts,
            edges=edges,
            number=np.array(block),
            totals=np.stack([whole.totals, last.totals]),
            batches=np.array([whole.number, 1]),
            streams=np.array([[streams.start, streams.stop] for streams in own]),
            rows=np.array([share.rows, share.last_rows]),
            sizes=np.array(
                [counts[0]] * (share.batches - edges[0]) + counts[1:] if counts[1] > counts[0] else counts[:1]
            ),
            key=np.array([seed, epoch]),
            most=max(most, np.diff(last.totals).max()),
        )
        return read_streams(plan, None if share.rest else counts[0]).skip(start - edges[0])

    def _parts(self, streams: Streams, own: Sequence[range], edges: np.ndarray) -> dict[str, Any]:
        """Say which segments each stream reads, and how many of their examples it gives to the batches.

        Args:
            streams: the streams of the epoch.
            own: those that are read for whole batches, and for the last one.
            edges: the first whole batch of each block, and their end.
        """
        whole, last = streams.whole, streams.last
        middles = (edges[:-1] + edges[1:] + 1) // 2
        halves = np.diff(np.diff(whole.taken(np.sort(np.concatenate([edges, middles]))), axis=0))
        heads = np.diff(last.totals)
        begins, ends = heads + np.diff(whole.taken(edges[0])), heads + np.diff(whole.totals)
        segments, places, parts = list[Segment](), [0], list[np.ndarray]()
        for stream in sorted({*own[0], *own[1]}):
            head, begin, end = (int(array[stream]) for array in (heads, begins, ends))
            wanted = []
            if stream in own[1]:
                wanted.append((0, head))
            if stream in own[0]:
                wanted.append((begin, end))
            if wanted == [(0, head), (head, end)]:
                wanted = [(0, end)]
            segments += [self.index.segment(*piece) for span in wanted for piece in streams.part(stream, *span)]
            places.append(len(segments))
            parts.append(np.array([head * (stream in own[1]), *halves[stream] * (stream in own[0])]))
        return {"segments": table_of(segments, self.files), "begins": np.array(places), "parts": np.stack(parts)}


def _nothing(share: WantedRows) -> tf.data.Dataset:
    none = tf.data.Dataset.from_tensor_slices(tf.zeros([0], tf.string))
    return none.batch(share.rows[1] - share.rows[0], drop_remainder=not share.rest)
