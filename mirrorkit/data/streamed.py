"""Recipes of sets in files, larger than memory: their batches as written, or from streams that are shuffled in blocks.

A block is what the streams (`record_streams.py`) give to a few batches. While its batches are given out, a thread reads
the next one.
"""

from __future__ import annotations

import abc
import functools
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import tensorflow as tf

from mirrorkit.data.preparation import PreparedRecipe, RowRanges
from mirrorkit.data.record_streams import EqualBatches, FileRange, Streams, between
from mirrorkit.data.remote_files import in_parallel, size_of, versions

_log = logging.getLogger("mirrorkit")

Arrays = tuple[np.ndarray, ...]  # one for each column
Spans = Mapping[int, tuple[int, int]]  # of streams, by their numbers: the first example, and the end
Reader = Callable[[Spans], Arrays]


class Cursor:
    """Reads the examples of some pieces, laid end to end; it is cheap to go on where the last call stopped.

    Args:
        pieces: examples of files, or of row groups.
        chunks: for a piece, the number of an example, and what is read from there on: several examples at a time.
        arrays: makes arrays, one for each column, of some examples of a file or row group.
    """

    def __init__(
        self,
        pieces: Sequence[FileRange],
        chunks: Callable[[FileRange], tuple[int, Iterator[Any]]],
        arrays: Callable[[int, Any], Arrays],
    ) -> None:
        self._pieces, self._chunks_of, self._arrays = pieces, chunks, arrays
        self._open = (-1, 0)  # the piece that is read: its file, and its end in it
        self._chunks: Iterator[Any] = iter(())  # what follows of it
        self._begin, self._held = 0, ()  # the last chunk, and the number of its first example

    def read(self, first: int, end: int) -> Arrays:
        """Return the examples from `first` to `end`.

        Raises:
            DataError: a file that is damaged, or holds fewer examples than was said; values that are not allowed.
            FileError: a file that cannot be read.
        """
        parts: list[Arrays] = []
        for piece in between(self._pieces, first, sys.maxsize):
            if first == end:
                break
            size = min(piece.size, end - first)
            parts += self._of_piece(piece, piece.first + size)
            first += size
        return tuple(map(np.concatenate, zip(*parts, strict=True)))

    def _of_piece(self, piece: FileRange, end: int) -> Iterator[Arrays]:
        """Yield the first examples of a piece, up to the one with the number `end` in its file."""
        if self._open != (piece.file, piece.first + piece.size) or piece.first < self._begin:
            self._open = (piece.file, piece.first + piece.size)
            self._begin, self._chunks = self._chunks_of(piece)
            self._held = ()
        first = piece.first
        while first < end:
            held_end = self._begin + len(self._held)
            if first >= held_end:
                self._begin, self._held = held_end, next(self._chunks)  # which has raised where there are fewer
            else:
                last = min(end, held_end)
                yield self._arrays(piece.file, self._held[first - self._begin : last - self._begin])
                first = last


def by_cursors(cursor_of: Callable[[int], Cursor], *, at_once: bool) -> Reader:
    """Return what reads one stream after the other, or all of them `at_once`, in threads."""
    cursor_of = functools.cache(cursor_of)

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
        files: the files, with their paths.
    """

    shuffle_buffer: int
    begins_with_last: bool
    few_streams: str
    files: Any

    def identity(self, epoch: int, start: int) -> str:
        """Return what must be the same on all workers; see `PreparedRecipe.identity`."""
        files = [(os.path.basename(file), size_of(file)) for file in self.files]
        return f"{super().identity(epoch, start)} {self.shuffle_buffer} {files} {versions(self.files)}"

    @abc.abstractmethod
    def _as_written(self, rows: RowRanges, start: int) -> Iterator[Arrays]:
        """Yield the rows that are asked for of each batch from `start` on, in the order of the files."""

    @abc.abstractmethod
    def _streams(self, epoch: int) -> Streams:
        """Return the streams of an epoch."""

    @abc.abstractmethod
    def _reader(self, streams: Streams, chunk: int) -> Reader:
        """Return what reads the streams of an epoch, of which blocks have about `chunk` examples each."""

    def _dataset(self, epoch: int, start: int, context: tf.distribute.InputContext | None) -> tf.data.Dataset:
        if self.shuffle:
            self._tell_few_streams(len(self._streams(epoch).pieces), context)
        options = tf.data.Options()  # its files are not TensorFlow's to divide
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
        return super()._dataset(epoch, start, context).with_options(options)

    def _read(self, rows: RowRanges, epoch: int, start: int) -> Iterator[Arrays]:
        return self._shuffled(rows, epoch, start) if self.shuffle else self._as_written(rows, start)

    def _shuffled(self, rows: RowRanges, epoch: int, start: int) -> Iterator[Arrays]:
        """Yield the rows that are asked for of each batch from `start` on."""
        for columns, places in _one_ahead(self._blocks(rows, epoch, start)):
            for of_batch in places:
                yield tuple(column[of_batch] for column in columns)

    def _blocks(self, rows: RowRanges, epoch: int, start: int) -> Iterator[tuple[Arrays, np.ndarray]]:
        """Read the blocks with the batches from `start` on; the last, smaller batch is a block of its own.

        Yields the examples of a block, and where those of each batch are among them. The place of a row depends neither
        on who asks nor on `start`.
        """
        streams, size = self._streams(epoch), self.global_batch_size
        per_block = max(1, min(self.shuffle_buffer // 2 // size, streams.whole.number))
        read = self._reader(streams, -(-per_block * size // len(streams.pieces)))
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
                spans, places = _block(batches, begins[kind], edges, rows[kind], key)
                yield read(spans), places[max(0, first - begin) :]

    def _tell_few_streams(self, streams: int, context: tf.distribute.InputContext | None) -> None:
        """Warn, the first time, where several workers read the same streams."""
        workers = 1 if context is None else context.num_input_pipelines
        if streams < workers:
            _say_once(
                f"{self.files[0]} and the files beside it can be read in {streams} places at a time for {workers} "
                f"workers, so that several read the same rows. {self.few_streams}"
            )


def _block(
    batches: EqualBatches, begins: np.ndarray, edges: np.ndarray, own: tuple[int, int], key: Sequence[int]
) -> tuple[Spans, np.ndarray]:
    """Return what each stream gives to consecutive batches, and where the rows of each batch are among that.

    Args:
        batches: all batches of one size.
        begins: the example with which each stream begins to give to them.
        edges: the numbers of the batches, and the one after them.
        own: the rows of each batch that are asked for; streams without such rows are left out.
        key: what their order depends on.
    """
    taken = batches.taken(edges)
    given = np.diff(taken, axis=0)  # by each stream before each edge
    rows = np.diff(taken, axis=1)  # of each batch, those before each stream's
    places = np.zeros([len(edges) - 1, int(rows[-1, 0])], np.int64)
    spans: dict[int, tuple[int, int]] = {}
    offset = 0
    for stream in batches.streams_of(*own):
        counts = np.diff(given[stream])
        batch = np.repeat(np.arange(len(counts)), counts)
        if not len(batch):
            continue
        first, end = begins[stream] + given[stream][[0, -1]]
        spans[stream] = int(first), int(end)
        row = rows[stream][batch] + np.arange(len(batch)) - np.repeat(np.cumsum(counts) - counts, counts)
        places[batch, row] = offset + np.random.default_rng([*key, stream]).permutation(len(batch))
        offset += len(batch)
    return spans, places[:, slice(*own)]


def _one_ahead(blocks: Iterator[Any]) -> Iterator[Any]:
    with ThreadPoolExecutor(1, thread_name_prefix="mirrorkit-read") as thread:
        coming = thread.submit(next, blocks, None)
        while (block := coming.result()) is not None:
            coming = thread.submit(next, blocks, None)
            yield block


@functools.cache
def _say_once(message: str) -> None:
    _log.warning(message)
