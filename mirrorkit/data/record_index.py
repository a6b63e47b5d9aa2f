"""How many examples TFRecord files hold, and where in a file an example begins."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from mirrorkit.data.disk import CURE, file_errors
from mirrorkit.data.record_lengths import BUFFER, first_length, is_local, lengths_of, unpacked_size
from mirrorkit.data.remote_files import PIECE, RemoteFile, in_parallel, size_of
from mirrorkit.errors import DataError

_log = logging.getLogger("mirrorkit")


class Segment(NamedTuple):
    """Consecutive examples of one file, and how to read them.

    Attributes:
        offset: the byte at which to begin.
        skip: how many examples to pass over from there.
        size: how many to read then.
        length: about how many bytes to read.
    """

    offset: int
    skip: int
    size: int
    length: int

    @property
    def buffer(self) -> int:
        """How many bytes to read at a time: buffers tile the examples, so that what lies behind is not read."""
        buffers = max(1, -(-self.length // BUFFER))
        return max(1 << 10, -(-self.length // buffers))


class _File:
    """One file. What must be read to find something out is read when it is asked for, and once."""

    def __init__(self, path: str, compression: str) -> None:
        self.path, self.compression = path, compression

    @functools.cached_property
    def size(self) -> int:
        """How many bytes it has."""
        with file_errors(f"{self.path} cannot be read", CURE):
            return size_of(self.path)

    @functools.cached_property
    def first_length(self) -> int | None:
        """The bytes of its first example, by the header; None where there is none."""
        return first_length(self.path, self.compression)

    @functools.cached_property
    def offsets(self) -> np.ndarray:
        """Where its examples begin, and the last one ends; in what a compressed file becomes."""
        lengths = np.fromiter(lengths_of(self.path, self.compression), np.int64)
        return np.insert(np.cumsum(lengths), 0, 0)

    @property
    def count(self) -> int:
        """How many examples are found in it."""
        return len(self.offsets) - 1


class RecordIndex:
    """The examples of a set of files: their number in each, and their places.

    What must be read to find out is read when it is asked for.

    Args:
        files: their paths.
        compression: "" or "GZIP".
        counts: the number of examples in each file, or in all together; None if it is unknown.
        one_size: whether `write_records` wrote them: all examples of a file have the same number of bytes.
    """

    def __init__(
        self, files: Sequence[str], compression: str, counts: Sequence[int] | int | None, one_size: bool = False
    ) -> None:
        self.files = tuple(files)
        self.compression = compression
        if isinstance(counts, int) and len(files) == 1:
            counts = [counts]
        self._told = tuple(counts) if isinstance(counts, Sequence) else counts
        self.one_size = one_size
        self._files = [_File(path, compression) for path in files]

    @property
    def reads_through(self) -> bool:
        """Whether counting and finding examples reads all that comes before them."""
        return bool(self.compression) or not all(map(is_local, self.files))

    @functools.cached_property
    def counts(self) -> tuple[int, ...]:
        """The number of examples in each file; counts them where nobody has said it."""
        if isinstance(self._told, tuple):
            return self._told
        if self.reads_through:
            _log.warning(
                "Reading %d files through to count their examples; records(num_examples=[...]), with one number for "
                "each file, spares it.",
                len(self.files),
            )
        return self._counted()

    def _counted(self) -> tuple[int, ...]:
        each = in_parallel if self.reads_through else map
        found = tuple(each(lambda file: file.count, self._files))
        if self._told not in (None, found, sum(found)):
            asked = list(self._told) if isinstance(self._told, tuple) else self._told
            raise DataError(
                f"num_examples={asked} was asked for, but {self.files[0]} and the files beside it hold {sum(found)} "
                f"examples: {', '.join(map(str, found))}. Correct it or leave it out."
            )
        return found

    def require_counts(self) -> None:
        """Compare the numbers that were told with the files, by their sizes where all examples have one size.

        What would have to be read through for that is believed: `num_examples` is there to spare that.

        Raises:
            DataError: a file that holds more or fewer examples; what comes after the last one would never be read.
        """
        if not self.one_size:
            if self._told is not None and not self.reads_through:
                self._counted()
            return

        def agrees(file: int) -> bool:
            return self._agrees(file) or self._files[file].count == self.counts[file]

        agreeing = in_parallel(agrees, range(len(self.files)))
        if not all(agreeing):
            raise self._other_count(agreeing.index(False))

    def per_buffer(self, file: int) -> int:
        """About how many examples of a file lie in a buffer."""
        return max(1, BUFFER * self.counts[file] // max(1, self._files[file].size))

    def segment(self, file: int, first: int, count: int) -> Segment:
        """How to read `count` examples of a file from the `first` on; of one at an address see `segments`."""
        if self.compression:  # where they lie among the compressed bytes is unknown
            return Segment(0, first, count, self._files[file].size)
        offset, end = self._offset(file, first), self._offset(file, first + count)
        return Segment(offset, 0, count, end - offset)

    def segments(self, file: int, first: int, count: int) -> Iterator[Segment]:
        """How to read `count` examples of a file from the `first` on; of one at an address, several small segments."""
        together = count
        if isinstance(self.files[file], RemoteFile) and not self.compression:
            together = max(1, PIECE * self.counts[file] // self._files[file].size)
        for begin in range(first, first + count, together):
            yield self.segment(file, begin, min(together, first + count - begin))

    def _offset(self, file: int, record: int) -> int:
        """The byte of an uncompressed file at which an example begins."""
        if self._agrees(file):
            return record * (self._files[file].size // self.counts[file])
        if self._files[file].count < self.counts[file]:
            raise self._other_count(file)
        return int(self._files[file].offsets[record])

    def _other_count(self, file: int) -> DataError:
        return DataError(
            f"{self.files[file]} should hold {self.counts[file]} examples, found {self._files[file].count}. Correct "
            "num_examples, or write the file again: it does not belong to its index."
        )

    def _agrees(self, file: int) -> bool:
        """Whether all examples have one size, the first one's, and there are as many as should be."""
        first = self._files[file].first_length if self.one_size else None
        if first is None:
            return False
        size = self.counts[file] * first
        if self.compression:
            return (size - unpacked_size(self.files[file])) % 2**32 == 0
        return size == self._files[file].size
