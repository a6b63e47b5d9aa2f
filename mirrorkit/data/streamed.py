"""Recipes of sets in files, larger than memory: their batches as written, or from streams that are shuffled in blocks.

A block is what the streams (`record_streams.py`) give to a few batches. While its batches are given out, a thread reads
the next one.
"""

from __future__ import annotations

import abc
import functools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from mirrorkit.data.augment import RowsToMake
from mirrorkit.data.generated import from_generator
from mirrorkit.data.preparation import PreparedRecipe
from mirrorkit.data.record_streams import EqualBatches, Streams
from mirrorkit.data.remote_files import in_parallel

_log = logging.getLogger("mirrorkit")

Arrays = tuple[np.ndarray, ...]  # one for each column
RowRanges = tuple[tuple[int, int], tuple[int, int]]  # those asked for of a whole batch, and of the last, smaller one


Spans = Mapping[int, tuple[int, int]]  # of streams, by their numbers: the first example, and the end
Reader = Callable[[Spans], Arrays]


class Cursor(Protocol):
    """Reads the examples of a stream; it is cheap to go on where the last call stopped."""

    def read(self, first: int, end: int) -> Arrays:
        """Return the examples from `first` to `end`."""


def by_cursors(open_stream: Callable[[int], Cursor], *, at_once: bool) -> Reader:
    """Return what reads one stream after the other, or all of them `at_once`, in threads."""
    cursor_of = functools.cache(open_stream)

    def read(spans: Spans) -> Arrays:
        cursors = [cursor_of(stream) for stream in spans]
        calls = [functools.partial(cursor.read, *span) for cursor, span in zip(cursors, spans.values(), strict=True)]
        parts = in_parallel(lambda call: call(), calls) if at_once else [call() for call in calls]
        return tuple(map(np.concatenate, zip(*parts, strict=True)))

    return read


class Streamed(PreparedRecipe):
    """What these recipes have in common.

    Attributes:
        shuffle_buffer: how many examples memory holds, divided among the workers.
        begins_with_last: whether a stream begins with its examples of the last, smaller batch; else they are its last.
        few_streams: the cure where there are more workers than streams.
    """

    shuffle_buffer: int
    begins_with_last: bool
    few_streams: str

    @property
    @abc.abstractmethod
    def _first_file(self) -> str:
        """The name of one of the files."""

    @abc.abstractmethod
    def _specs(self, length: int | None) -> tuple[tf.TensorSpec, ...]:
        """Return the specs of what is read for a batch with so many examples."""

    @abc.abstractmethod
    def _as_written(self, rows: RowRanges, start: int) -> Iterator[Arrays]:
        """Yield the rows that are asked for of each batch from `start` on, in the order of the files."""

    @abc.abstractmethod
    def _streams(self, epoch: int) -> Streams:
        """Return the streams of an epoch."""

    @abc.abstractmethod
    def _reader(self, streams: Streams, chunk: int) -> Reader:
        """Return what reads the streams of an epoch, of which blocks have about `chunk` examples each."""

    @abc.abstractmethod
    def _element(self, *read: Any) -> tuple[Any, ...]:
        """Return `(x,)`, `(x, y)` or `(x, y, sample_weight)` of what was read for a batch."""

    def dataset(
        self, epoch: int = 0, start: int = 0, *, input_context: tf.distribute.InputContext | None = None
    ) -> tf.data.Dataset:
        """The global batches `start`, `start + 1`, ... of `epoch`; those before are passed over; see `Recipe.dataset`.

        Raises:
            RecipeError: a negative epoch, or a start outside 0 .. steps_per_epoch.
            DataError: a file that does not hold the given number of examples.
        """
        self._check_position(epoch, start)
        self._check_map()
        both = self._rows_of_both(input_context)
        rows = (both[0].made, both[1].made)
        if self.shuffle:
            self._tell_few_streams(len(self._streams(epoch).pieces), input_context)
        length = None if both[1].size else both[0].made_end - both[0].made_first
        make = functools.partial(self._read, rows, epoch, start)
        read = from_generator(make, self._specs(length), self.steps_per_epoch - start)

        def batch(step: tf.Tensor, read: tuple[Any, ...]) -> Any:
            rows = None if input_context is None else self.rows_of(step, input_context)
            return self.finish(self._element(*read), epoch=epoch, step=step, rows=rows)

        options = tf.data.Options()  # its files are not TensorFlow's to divide
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
        return self._made(self._decoded(read, both, start).enumerate(start), batch).with_options(options)

    def _decoded(self, read: tf.data.Dataset, rows: tuple[RowsToMake, RowsToMake], start: int) -> tf.data.Dataset:
        """Decode what was read, where that is not done by the batch."""
        return read

    def _read(self, rows: RowRanges, epoch: int, start: int) -> Iterator[Arrays]:
        return self._shuffled(rows, epoch, start) if self.shuffle else self._as_written(rows, start)

    def _shuffled(self, rows: RowRanges, epoch: int, start: int) -> Iterator[Arrays]:
        """Yield the rows that are asked for of each batch from `start` on."""
        streams = self._streams(epoch)
        per_block = max(1, min(self.shuffle_buffer // 2 // self.global_batch_size, streams.whole.number))
        read = self._reader(streams, -(-per_block * self.global_batch_size // len(streams.pieces)))

        def held(block: _Block) -> tuple[Arrays, np.ndarray]:
            return read(block.spans()), block.places()

        for columns, places in _one_ahead(map(held, self._blocks(streams, rows, epoch, start, per_block))):
            for of_batch in places:
                yield tuple(column[of_batch] for column in columns)

    def _blocks(self, streams: Streams, rows: RowRanges, epoch: int, start: int, per_block: int) -> Iterator[_Block]:
        """Yield the blocks with the batches from `start` on; the last, smaller batch is a block of its own.

        The place of a row depends neither on who asks nor on `start`.
        """
        whole, last = (np.diff(batches.totals) for batches in (streams.whole, streams.last))
        begins = (last, 0 * last) if self.begins_with_last else (0 * whole, whole)
        after = max(0, start - streams.whole.number)
        kinds = [(streams.whole, start, per_block), (streams.last, after, 1)]
        for kind, (batches, first, together) in enumerate(kinds):
            if first >= batches.number or (kind and self.steps_per_epoch == streams.whole.number):
                continue  # no smaller batch is left to give, or none was asked for
            for begin in range(first // together * together, batches.number, together):
                edges = np.arange(begin, min(begin + together, batches.number) + 1)
                key = [self.seed, epoch, kind, begin // together]
                yield _Block(batches, begins[kind], edges, rows[kind], key, max(0, first - begin))

    def _tell_few_streams(self, streams: int, context: tf.distribute.InputContext | None) -> None:
        """Warn, the first time, where several workers read the same streams."""
        workers = 1 if context is None else context.num_input_pipelines
        if streams < workers:
            _say_once(
                f"{self._first_file} and the files beside it can be read in {streams} places at a time for {workers} "
                f"workers, so that several read the same rows. {self.few_streams}"
            )


class _Block:
    """Consecutive batches, the first few of which are not wanted, and the streams that have rows that are asked for."""

    def __init__(
        self,
        batches: EqualBatches,
        begins: np.ndarray,
        edges: np.ndarray,
        own: tuple[int, int],
        key: Sequence[int],
        unwanted: int,
    ) -> None:
        taken = batches.taken(edges)
        self._begins, self._own, self._key, self._unwanted = begins, own, key, unwanted
        self._given = np.diff(taken, axis=0)  # by each stream before each edge
        self.streams = [stream for stream in batches.streams_of(*own) if np.ptp(self._given[stream])]
        self._rows = np.diff(taken, axis=1)  # of each batch, those before each stream's

    def spans(self) -> Spans:
        """Which of its rows each stream gives to the block."""
        ends = self._begins[:, None] + self._given[:, [0, -1]]
        return {stream: (int(ends[stream, 0]), int(ends[stream, 1])) for stream in self.streams}

    def places(self) -> np.ndarray:
        """Where the rows of each batch are among what the streams give, one after the other, [batches, rows]."""
        size = int(self._rows[-1, 0])
        found = np.zeros([self._rows.shape[1], size], np.int64)
        offset = 0
        for stream in self.streams:
            counts = np.diff(self._given[stream])
            batch = np.repeat(np.arange(len(counts)), counts)
            number = np.arange(len(batch))
            row = self._rows[stream][batch] + number - np.repeat(np.cumsum(counts) - counts, counts)
            found[batch, row] = offset + np.random.default_rng([*self._key, stream]).permutation(len(batch))
            offset += len(batch)
        return found[self._unwanted :, slice(*self._own)]


def _one_ahead(blocks: Iterator[Any]) -> Iterator[Any]:
    with ThreadPoolExecutor(1, thread_name_prefix="mirrorkit-read") as thread:
        coming = thread.submit(next, blocks, None)
        while (block := coming.result()) is not None:
            coming = thread.submit(next, blocks, None)
            yield block


@functools.cache
def _say_once(message: str) -> None:
    _log.warning(message)
