"""Serialized examples of TFRecord files, in the order of an epoch. TensorFlow reads them, and compares checksums."""

from __future__ import annotations

import collections
import contextlib
import functools
import itertools
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from mirrorkit.data.preparation import RowRanges
from mirrorkit.data.record_index import RecordIndex, Segment
from mirrorkit.data.record_lengths import read_errors
from mirrorkit.data.record_streams import FileRange, remaining
from mirrorkit.data.remote_files import RemoteFile, copied
from mirrorkit.data.streamed import Arrays, Cursor
from mirrorkit.errors import DataError

_OPEN_FILES = 16  # read at the same time, unshuffled
_ALL = sys.maxsize  # examples
_AS_IT_IS = tf.data.Options()  # TensorFlow 2.21 cannot rewrite a dataset with offsets
_AS_IT_IS.experimental_optimization.apply_default_optimizations = False
_AS_IT_IS.autotune.enabled = False


def read(index: RecordIndex, pieces: Sequence[FileRange]) -> Arrays:
    """Return the examples of some pieces of local, uncompressed files.

    Raises:
        DataError: a file that is damaged.
        FileError: a file that cannot be read.
    """
    segments = [index.segment(*piece) for piece in pieces]
    numbers = np.array([(one.offset, one.skip, one.size, one.buffer) for one in segments], np.int64)
    with contextlib.suppress(tf.errors.OpError):
        found = _read([index.files[piece.file] for piece in pieces], *numbers.T).numpy()
        if len(found) == numbers[:, 2].sum():
            return (found,)
    # One file after the other, so that the error names it.
    chunks = itertools.chain.from_iterable(_chunks(index, piece, 1) for piece in pieces)
    return (np.concatenate(list(chunks)),)


def _examples_of(compression: Any, path: Any, offset: Any, buffer: Any) -> tf.data.Dataset:
    variant = tf.raw_ops.TFRecordDatasetV2(  # tf.data.TFRecordDataset takes no offsets
        filenames=[path], compression_type=compression, buffer_size=buffer, byte_offsets=[offset]
    )
    return tf.data.experimental.from_variant(variant, tf.TensorSpec([], tf.string))


@functools.partial(
    tf.function,
    input_signature=[tf.TensorSpec([None], tf.string), *[tf.TensorSpec([None], tf.int64)] * 4],
    autograph=False,
)
def _read(*columns: tf.Tensor) -> tf.Tensor:
    """Return the examples of segments: paths, offsets, how many to pass over and to read, and sizes of buffers."""

    @tf.autograph.experimental.do_not_convert
    def of_segment(path: tf.Tensor, offset: tf.Tensor, skip: tf.Tensor, size: tf.Tensor, buffer: tf.Tensor) -> Any:
        return _examples_of("", path, offset, buffer).skip(skip).take(size)

    examples = tf.data.Dataset.from_tensor_slices(columns).flat_map(of_segment)
    return examples.batch(tf.reduce_sum(columns[3])).get_single_element()


def cursor(index: RecordIndex, pieces: Sequence[FileRange], chunk: int) -> Cursor:
    """Return what reads pieces of files that cannot be read from any byte on, so many examples at a time."""

    def chunks(piece: FileRange) -> tuple[int, Iterator[np.ndarray]]:
        return piece.first, _chunks(index, piece, chunk)

    def arrays(file: int, examples: np.ndarray) -> Arrays:
        return (examples,)

    return Cursor(pieces, chunks, arrays)


def as_written(index: RecordIndex, rows: RowRanges, sizes: Sequence[int], start: int) -> Iterator[Arrays]:
    """Yield the rows that are asked for of each batch from `start` on, of up to 16 files one example in turn.

    The batches have these `sizes`. What others ask for is read too, and dropped.
    """
    together, before = min(len(index.files), _OPEN_FILES), sum(sizes[:start])
    pieces = [FileRange(file, 0, _ALL) for file in range(len(index.files))]
    if index.known or not index.reads_through:
        pieces, before = remaining(index.counts, together, before), 0
    chunk = -(-sizes[0] // together)
    examples = _in_turn([_examples(index, piece, chunk) for piece in pieces], together)
    collections.deque(itertools.islice(examples, before), maxlen=0)
    for size in sizes[start:]:
        batch = list(itertools.islice(examples, size))
        if len(batch) < size:
            raise _fewer(f"{index.files[0]} and the files beside it hold")
        yield (np.array(batch[slice(*rows[size < sizes[0]])], object),)


def _in_turn(files: Sequence[Iterator[bytes]], together: int) -> Iterator[bytes]:
    """Yield one example of each open file in turn, as `tf.data.Dataset.interleave` does; see `remaining`."""
    left = collections.deque(files)
    slots: list[Iterator[bytes] | None] = [None] * together
    while left or any(slots):
        for turn, file in enumerate(slots):
            if file is None and left:
                file = left.popleft()
            example = None if file is None else next(file, None)
            slots[turn] = None if example is None else file
            if example is not None:
                yield example


def _examples(index: RecordIndex, piece: FileRange, chunk: int) -> Iterator[bytes]:
    """Return the examples of a piece; at least as many are read at a time as lie in a buffer."""
    return itertools.chain.from_iterable(_chunks(index, piece, max(chunk, index.per_buffer(piece.file))))


def _chunks(index: RecordIndex, piece: FileRange, chunk: int) -> Iterator[np.ndarray]:
    """Yield the examples of a piece of a file, several at a time."""
    file, count = index.files[piece.file], 0
    for segment in index.segments(*piece) if piece.size < _ALL else [index.whole(piece.file)]:
        with _at_hand(file, segment) as (path, offset):
            examples = _examples_of(index.compression, path, offset, segment.buffer)
            parts = iter(examples.skip(segment.skip).take(segment.size).batch(chunk).with_options(_AS_IT_IS))
            while True:
                with read_errors(file, piece.first + count):
                    part = next(parts, None)
                if part is None:
                    break
                count += len(part)
                yield part.numpy()
    if count < piece.size < _ALL:
        raise _fewer(f"{file} ends before example {piece.first + count}: it holds")


@contextlib.contextmanager
def _at_hand(file: str, segment: Segment) -> Iterator[tuple[str, int]]:
    """Give a path that TensorFlow can read, and the byte of it at which a segment begins."""
    if isinstance(file, RemoteFile):
        with copied(file, segment.offset, segment.offset + segment.length) as path:
            yield path, 0
    else:
        yield file, segment.offset


def _fewer(what: str) -> DataError:
    """Return the error about files that end too early."""
    return DataError(
        f"{what} fewer examples than when the recipe was made, or than num_examples says. Make a new recipe, or "
        "correct num_examples."
    )
