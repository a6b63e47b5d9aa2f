"""Serialized examples of TFRecord files. TensorFlow reads them, and compares checksums."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from mirrorkit.data.in_blocks import Arrays, BlockReading, Read, by_block
from mirrorkit.data.record_index import RecordIndex
from mirrorkit.data.record_lengths import read_errors
from mirrorkit.data.remote_files import RemoteFile, copied
from mirrorkit.errors import DataError

_BLOCKS = 256  # into which the files are divided, if examples in them can be found
_NEAR = 32  # examples: what lies between two that are nearer to each other is read too
_AS_IT_IS = tf.data.Options()  # TensorFlow 2.21 cannot rewrite a dataset with offsets
_AS_IT_IS.experimental_optimization.apply_default_optimizations = False
_AS_IT_IS.autotune.enabled = False


class RecordReader(RecordIndex):
    """Reads the examples of a set of files, numbered file after file; see `in_blocks.Reader`."""

    most = 64

    @property
    def by_number(self) -> bool:
        """See `in_blocks.Reader`."""
        return not self.reads_through

    @functools.cached_property
    def blocks(self) -> list[int]:
        """The number of examples in each block: a part of a file, or a file if it is compressed."""
        return [size for _, _, size in self._spans]

    @functools.cached_property
    def _spans(self) -> list[tuple[int, int, int]]:
        """Of each block the file, the number of its first example in it, and how many it has."""
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
        """See `in_blocks.Reader`: `write_records` gives example i to file i modulo the number of files."""
        files, total = len(self.files), sum(self.counts)
        in_turn = tuple(len(range(file, total, files)) for file in range(files))
        if not self.one_size or self.counts != in_turn:
            return places
        return self._firsts[places % files] + places // files

    def opened(self) -> Read:
        """See `in_blocks.Reader`."""
        return self._read if self.by_number else BlockReading(self.blocks, self._opened)

    def _opened(self, block: int, first: int) -> tuple[int, Iterator[Arrays]]:
        file, begin, size = self._spans[block]
        return first, ((part,) for part in self._parts(file, begin + first, size - first))

    def _read(self, numbers: np.ndarray) -> Arrays:
        """Read examples of local, uncompressed files, in stretches of those that are near to each other."""
        stretches = []
        for file, of_file in by_block(self._firsts, numbers):
            far = np.flatnonzero(np.diff(of_file) > _NEAR) + 1
            stretches += [(file, stretch) for stretch in np.split(of_file, far)]
        spans = [(file, int(stretch[0]), int(stretch[-1] - stretch[0]) + 1) for file, stretch in stretches]
        begins = itertools.accumulate((size for _, _, size in spans), initial=0)
        places = [stretch - stretch[0] + begin for (_, stretch), begin in zip(stretches, begins, strict=False)]
        return (self._of_spans(spans)[np.concatenate(places)],)

    def _of_spans(self, spans: list[tuple[int, int, int]]) -> np.ndarray:
        """Return the examples of some spans of local, uncompressed files: of each the file, the first, and how many."""
        segments = [self.segment(*span) for span in spans]
        numbers = np.array([(one.offset, one.size, one.buffer) for one in segments], np.int64)
        with contextlib.suppress(tf.errors.OpError):
            found = _examples([self.files[file] for file, _, _ in spans], *numbers.T).numpy()
            if len(found) == numbers[:, 1].sum():
                return found
        # One file after the other, so that the error names it.
        found = itertools.chain.from_iterable(self._parts(*span) for span in spans)
        return np.concatenate(list(found))

    def _parts(self, file: int, first: int, size: int) -> Iterator[np.ndarray]:
        """Yield examples of a file from the `first` on, several at a time."""
        path, count = self.files[file], 0
        for segment in self.segments(file, first, size):
            offset = segment.offset
            where: contextlib.AbstractContextManager[str] = contextlib.nullcontext(path)
            if isinstance(path, RemoteFile):  # TensorFlow reads only files
                offset, where = 0, copied(path, offset, offset + segment.length)
            with where as here:
                examples = _examples_of(self.compression, here, offset, segment.buffer).skip(segment.skip)
                parts = iter(examples.take(segment.size).batch(self.per_buffer(file)).with_options(_AS_IT_IS))
                while True:
                    with read_errors(path, first + count):
                        part = next(parts, None)
                    if part is None:
                        break
                    count += len(part)
                    yield part.numpy()
        if count < size:
            raise DataError(
                f"{path} ends before example {first + count}: it holds fewer examples than when the recipe was made, "
                "or than num_examples says. Make a new recipe, or correct num_examples."
            )


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
    """Return the examples of segments: paths, offsets, how many to read, and sizes of buffers."""

    @tf.autograph.experimental.do_not_convert
    def of_segment(path: tf.Tensor, offset: tf.Tensor, size: tf.Tensor, buffer: tf.Tensor) -> Any:
        return _examples_of("", path, offset, buffer).take(size)

    examples = tf.data.Dataset.from_tensor_slices(columns).flat_map(of_segment)
    return examples.batch(tf.reduce_sum(columns[2])).get_single_element()
