"""How many examples TFRecord files hold, and where in a file an example begins."""

from __future__ import annotations

import bisect
import functools
import itertools
import logging
import sys
from array import array
from collections.abc import Sequence
from typing import NamedTuple

from mirrorkit.data.disk import CURE, file_errors
from mirrorkit.data.record_lengths import (
    BUFFER,
    first_length,
    is_local,
    lengths_by_headers,
    lengths_of,
    unpacked_size,
)
from mirrorkit.data.remote_files import PIECE, RemoteFile, in_parallel, size_of
from mirrorkit.errors import DataError

_log = logging.getLogger("mirrorkit")

_EVERY = 32  # an offset of this many examples is kept: 16 bytes for 32 of them, or for large ones


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
    def places(self) -> tuple[array[int], array[int]]:
        """The numbers of some examples and their offsets; at last how many examples and bytes there are."""
        records, offsets = array("q"), array("q")
        count, offset = 0, 0
        for length in lengths_of(self.path, self.compression):
            if count % _EVERY == 0 or offset - offsets[-1] >= BUFFER:
                records.append(count)
                offsets.append(offset)
            count += 1
            offset += length
        records.append(count)
        offsets.append(offset)
        return records, offsets

    @property
    def count(self) -> int:
        """How many examples are found in it."""
        return self.places[0][-1]


class RecordIndex:
    """The examples of a set of files: their number in each, and their places.

    What must be read to find out is read when it is asked for.

    Args:
        files: their paths.
        compression: "" or "GZIP".
        counts: the number of examples in each file, or in all together; None if it is unknown.
        one_size: whether all examples of a file have the same number of bytes.
    """

    def __init__(
        self, files: Sequence[str], compression: str, counts: Sequence[int] | int | None, one_size: bool = False
    ) -> None:
        self.files = tuple(files)
        self.compression = compression
        if isinstance(counts, int) and len(files) == 1:
            counts = [counts]
        self._told = tuple(counts) if isinstance(counts, Sequence) else counts
        self._one_size = one_size
        self._files = [_File(path, compression) for path in files]

    @property
    def known(self) -> bool:
        """Whether `counts` is told without reading."""
        return isinstance(self._told, tuple)

    @property
    def reads_through(self) -> bool:
        """Whether counting and finding examples reads all that comes before them."""
        return bool(self.compression) or not all(map(is_local, self.files))

    @property
    def is_remote(self) -> bool:
        """Whether the files are at addresses, of which TensorFlow reads copies."""
        return isinstance(self.files[0], RemoteFile)

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
        if self.is_remote:
            in_parallel(lambda file: file.places, self._files)
        found = tuple(file.count for file in self._files)
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
        if not self._one_size:
            if self._told is not None and not self.reads_through:
                self._counted()
            return
        if self.is_remote and not self.compression:
            in_parallel(self._agrees, range(len(self.files)))
        for file, count in enumerate(self.counts):
            if not self._agrees(file) and self._files[file].count != count:
                raise self._other_count(file)

    def per_buffer(self, file: int) -> int:
        """About how many examples of a local file lie in a buffer; 1 where that is unknown."""
        return 1 if self.reads_through else max(1, BUFFER * self.counts[file] // max(1, self._files[file].size))

    def segment(self, file: int, first: int, count: int) -> Segment:
        """How to read `count` examples of a file from the `first` on; of one at an address see `segments`."""
        offset, skip = self._place(file, first)
        size, held = self._files[file].size, self.counts[file]
        if self.compression:  # where they lie among the compressed bytes is unknown; about here
            end = -(-size * (first + count) // max(1, held))
        else:
            end = size if first + count == held else self._end(file, first + count)
        return Segment(offset, skip, count, end - offset)

    def segments(self, file: int, first: int, count: int) -> list[Segment]:
        """How to read `count` examples of a file from the `first` on; of one at an address, several small segments."""
        if not self.is_remote:
            return [self.segment(file, first, count)]
        if self.compression:
            return [self.whole(file)._replace(skip=first, size=count)]
        together = PIECE * self.counts[file] // self._files[file].size
        together = max(1, together // _EVERY * _EVERY if together > _EVERY else together)
        cuts = [first, *range(first - first % together + together, first + count, together), first + count]
        return [self.segment(file, begin, end - begin) for begin, end in itertools.pairwise(cuts)]

    def whole(self, file: int) -> Segment:
        """How to read a whole file."""
        return Segment(0, 0, sys.maxsize, self._files[file].size)

    def _place(self, file: int, record: int) -> tuple[int, int]:
        """An offset in a file, and how many examples lie between it and the one with the number `record`."""
        if self.compression:
            return 0, record
        if self._agrees(file):
            return record * (self._files[file].size // self.counts[file]), 0
        records, offsets = self._places(file)
        at = bisect.bisect_right(records, record) - 1
        offset, skip = offsets[at], record - records[at]
        if skip and is_local(self.files[file]):
            lengths = list(itertools.islice(lengths_by_headers(self.files[file], offset), skip))
            offset, skip = offset + sum(lengths), 0  # fewer where the file was cut off since
        return offset, skip

    def _end(self, file: int, record: int) -> int:
        """An offset behind all examples before the one with the number `record`: its own, or a later one."""
        offset, skip = self._place(file, record)
        if skip:
            records, offsets = self._places(file)
            return offsets[bisect.bisect_left(records, record)]
        return offset

    def _places(self, file: int) -> tuple[array[int], array[int]]:
        if self._files[file].count < self.counts[file]:
            raise self._other_count(file)
        return self._files[file].places

    def _other_count(self, file: int) -> DataError:
        return DataError(
            f"{self.files[file]} should hold {self.counts[file]} examples, found {self._files[file].count}. Correct "
            "num_examples, or write the file again: it does not belong to its index."
        )

    def _agrees(self, file: int) -> bool:
        """Whether all examples have one size, the first one's, and there are as many as should be."""
        first = self._files[file].first_length if self._one_size else None
        if first is None:
            return False
        size = self.counts[file] * first
        if self.compression:
            return (size - unpacked_size(self.files[file])) % 2**32 == 0
        return size == self._files[file].size
