"""The examples of TFRecord files: how many, where each begins, and what they hold, serialized.

TensorFlow reads them, and compares checksums.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from mirrorkit.data.disk import CURE, file_errors
from mirrorkit.data.reading import Arrays, Reader, by_block
from mirrorkit.data.record_lengths import BUFFER, first_length, is_local, lengths_of, parts_of
from mirrorkit.data.remote_files import PIECE, RemoteFile, copied, in_parallel, size_of
from mirrorkit.errors import DataError

_log = logging.getLogger("mirrorkit")

_BLOCKS = 256  # into which the files are divided, if examples in them can be found
_NEAR = 32  # examples: what lies between two that are nearer to each other is read too
_NEAR_BYTES = 16 << 10  # but no more than so many bytes for each, since memory holds them
_AS_IT_IS = tf.data.Options()  # TensorFlow 2.21 cannot rewrite a dataset with offsets
_AS_IT_IS.experimental_optimization.apply_default_optimizations = False
_AS_IT_IS.autotune.enabled = False

Span = tuple[int, int, int]  # consecutive examples: their file, the number of the first one in it, and how many


class RecordReader(Reader):
    """Reads the examples of a set of files, numbered file after file.

    Args:
        files: their paths.
        compression: "" or "GZIP".
        told: the number of examples in each file, or in all together; None if it is unknown.
        one_size: whether `write_records` wrote them: all examples of a file have the same number of bytes.
    """

    def __init__(
        self, files: Sequence[str], compression: str, told: Sequence[int] | int | None, one_size: bool = False
    ) -> None:
        self.files = tuple(files)
        self.compression = compression
        self._told = tuple(told) if isinstance(told, Sequence) else told
        self.one_size = one_size
        # Where an example can be found only by reading what comes before it, it is not read by its number.
        self.by_number = not compression and all(map(is_local, self.files))
        self.offsets = functools.cache(self._offsets_in)

    def _offsets_in(self, file: int) -> Sequence[int] | np.ndarray:
        """Return where the examples of a file begin, and the last one ends; in what a compressed file becomes."""
        path = self.files[file]
        if self.one_size and not self.compression and isinstance(self._told, tuple):
            with file_errors(f"{path} cannot be read", CURE):
                size = size_of(path)
            one, count = first_length(path, ""), self._told[file]
            if one is not None and count * one == size:
                return range(0, size + 1, one)
        lengths = np.fromiter(lengths_of(path, self.compression), np.int64)
        return np.insert(np.cumsum(lengths), 0, 0)

    @functools.cached_property
    def counts(self) -> tuple[int, ...]:
        """The number of examples in each file. What was said is believed where reading the files through would tell.

        Raises:
            DataError: other numbers than were said.
        """
        told = self._told
        if isinstance(told, int) and len(self.files) == 1:
            told = (told,)
        if isinstance(told, tuple) and not self.by_number:
            return told
        if not self.by_number:
            _log.warning(
                "Reading %d files through to count their examples; records(num_examples=[...]), with one number for "
                "each file, spares it.",
                len(self.files),
            )
        each = map if self.by_number else in_parallel
        found = tuple(each(lambda file: len(self.offsets(file)) - 1, range(len(self.files))))
        if told not in (None, found, sum(found)):
            asked = list(told) if isinstance(told, tuple) else told
            raise DataError(
                f"{self.files[0]} and the files beside it should hold {asked} examples, as num_examples or their index "
                f"says; found {sum(found)}: {', '.join(map(str, found))}. Correct num_examples, or write the set again."
            )
        return found

    def place(self, file: int, first: int, count: int) -> tuple[int, int]:
        """Return the byte at which to begin to read some examples of a file, and about how many bytes to read."""
        path, offsets = self.files[file], self.offsets(file)
        if len(offsets) - 1 != self.counts[file]:  # at an address, where this shows only now
            raise DataError(
                f"{path} should hold {self.counts[file]} examples, found {len(offsets) - 1}. Correct num_examples, or "
                "write the file again: it does not belong to its index."
            )
        begin, end = int(offsets[first]), int(offsets[first + count])
        return begin, end - begin

    def specs(self, rows: int | None) -> tuple[tf.TensorSpec, ...]:
        """See `Reader`."""
        return (tf.TensorSpec([rows], tf.string),)

    @functools.cached_property
    def blocks(self) -> list[int]:  # type: ignore[override]
        """The number of examples in each block: a part of a file, or a file if it is compressed."""
        return [size for _, _, size in self._spans]

    @functools.cached_property
    def _spans(self) -> list[Span]:
        each = max(1, sum(self.counts) // _BLOCKS)
        found = []
        for file, count in enumerate(self.counts):
            parts = 1 if self.compression else max(1, count // each)
            cuts = [part * count // parts for part in range(parts + 1)]
            found += [(file, first, end - first) for first, end in itertools.pairwise(cuts)]
        return found

    @functools.cached_property
    def _firsts(self) -> np.ndarray:
        """The number of the first example of each file."""
        return np.cumsum([0, *self.counts])[:-1]

    def numbers(self, places: np.ndarray) -> np.ndarray:
        """See `Reader`: `write_records` gives example i to file i modulo the number of files."""
        files, total = len(self.files), sum(self.counts)
        in_turn = tuple(len(range(file, total, files)) for file in range(files))
        if not self.one_size or self.counts != in_turn:
            return places
        return self._firsts[places % files] + places // files

    def read(self, numbers: np.ndarray) -> Arrays:
        """See `Reader`: stretches of examples that are near to each other, at once."""
        spans: list[Span] = []
        places, count = [], 0
        for file, of_file in by_block(self._firsts, numbers):
            one = int(self.offsets(file)[-1]) // self.counts[file]  # about the size of an example
            far = np.flatnonzero(np.diff(of_file) > max(1, min(_NEAR, _NEAR_BYTES // one))) + 1
            for stretch in np.split(of_file, far):
                first, size = int(stretch[0]), int(stretch[-1] - stretch[0]) + 1
                spans.append((file, first, size))
                places.append(stretch - first + count)
                count += size
        return (self._of_spans(spans)[np.concatenate(places)],)

    def _of_spans(self, spans: list[Span]) -> np.ndarray:
        """Return the examples of some spans of local, uncompressed files."""
        places = [self.place(*span) for span in spans]
        numbers = [
            (offset, size, _buffer(length)) for (offset, length), (_, _, size) in zip(places, spans, strict=True)
        ]
        columns = np.array(numbers, np.int64).T
        with contextlib.suppress(tf.errors.OpError):
            examples = _examples([self.files[file] for file, _, _ in spans], *columns).numpy()
            if len(examples) == columns[1].sum():
                return examples
        # One file after the other, so that the error names it.
        return np.concatenate([part for span in spans for part in self._parts(*span)])

    def read_block(self, block: int, first: int) -> tuple[int, Iterator[Arrays]]:
        """See `Reader`."""
        file, begin, size = self._spans[block]
        return first, ((part,) for part in self._parts(file, begin + first, size - first))

    def _parts(self, file: int, first: int, count: int) -> Iterator[np.ndarray]:
        """Yield examples of a file from the `first` on, several at a time; of one at an address, in small pieces."""
        path, end = self.files[file], first + count
        size = max(1, size_of(path))
        per_buffer, per_piece = (max(1, many * self.counts[file] // size) for many in (BUFFER, PIECE))
        in_pieces = isinstance(path, RemoteFile) and not self.compression
        while first < end:
            wanted = min(per_piece, end - first) if in_pieces else end - first
            # where examples lie among compressed bytes is unknown
            offset, length = (0, size) if self.compression else self.place(file, first, wanted)
            skip = first if self.compression else 0
            where: contextlib.AbstractContextManager[str] = contextlib.nullcontext(path)
            if isinstance(path, RemoteFile):  # TensorFlow reads only files
                offset, where = 0, copied(path, offset, offset + length)
            with where as here:
                examples = _examples_of(self.compression, here, offset, _buffer(length)).skip(skip)
                parts = examples.take(wanted).batch(per_buffer).with_options(_AS_IT_IS)
                for part in parts_of(path, parts, first):
                    first, wanted = first + len(part), wanted - len(part)
                    yield part
            if wanted:
                raise DataError(
                    f"{path} ends before example {first}: it holds fewer examples than when the recipe was made, or "
                    "than num_examples says. Make a new recipe, or correct num_examples."
                )


def _buffer(length: int) -> int:
    """How many bytes to read at a time: buffers tile the examples, so that what lies behind is not read."""
    buffers = max(1, -(-length // BUFFER))
    return max(1 << 10, -(-length // buffers))


def _examples_of(compression: Any, path: Any, offset: Any, buffer: Any) -> tf.data.Dataset:
    variant = tf.raw_ops.TFRecordDatasetV2(  # tf.data.TFRecordDataset takes no offsets
        filenames=[path], compression_type=compression, buffer_size=buffer, byte_offsets=[offset]
    )
    return tf.data.experimental.from_variant(variant, tf.TensorSpec([], tf.string))


@functools.partial(
    tf.function,
    input_signature=[tf.TensorSpec([None], tf.string), *[tf.TensorSpec([None], tf.int64)] * 3],
    autograph=False,
)
def _examples(*columns: tf.Tensor) -> tf.Tensor:
    """Return the examples of spans: paths, offsets, how many to read, and sizes of buffers."""

    @tf.autograph.experimental.do_not_convert
    def of_span(path: tf.Tensor, offset: tf.Tensor, size: tf.Tensor, buffer: tf.Tensor) -> Any:
        return _examples_of("", path, offset, buffer).take(size)

    examples = tf.data.Dataset.from_tensor_slices(columns).flat_map(of_span)
    return examples.batch(tf.reduce_sum(columns[2])).get_single_element()
