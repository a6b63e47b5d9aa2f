"""How many examples TFRecord files hold, and where in a file an example begins."""

from __future__ import annotations

import bisect
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

_EVERY = 32  # an offset of this many is kept: 8 bytes for 32 examples


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
        self._asked = list(counts) if isinstance(counts, Sequence) else counts
        if isinstance(counts, int) and len(files) == 1:
            counts = (counts,)
        self._told = tuple(counts) if isinstance(counts, Sequence) else counts
        self._one_size = one_size
        self._found: dict[int, tuple[int, array[int]]] = {}  # by file: examples, every 32nd offset
        self._found_cuts: dict[int, tuple[list[int], list[int]]] = {}  # by file: as `_cuts` returns them
        self._bytes: dict[int, int] = {}
        self._agreeing: dict[int, bool] = {}

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

    @property
    def counts(self) -> tuple[int, ...]:
        """The number of examples in each file; counts them where nobody has said it."""
        if isinstance(self._told, tuple):
            return self._told
        if self.reads_through and len(self._found) < len(self.files):
            _log.warning(
                "Reading %d files through to count their examples; records(num_examples=[...]), with one number for "
                "each file, spares it.",
                len(self.files),
            )
        return self._counted()

    def require_told(self) -> None:
        """Compare a number that the user told with the headers of the files.

        Those that would have to be read through are believed: `num_examples` is there to spare that.

        Raises:
            DataError: files that hold more or fewer examples; what comes after the last one would never be read.
        """
        if self._told is not None and not self._one_size and not self.reads_through:
            self._counted()

    def _counted(self) -> tuple[int, ...]:
        if self.is_remote:
            in_parallel(self._find, range(len(self.files)))
        found = tuple(self._find(file)[0] for file in range(len(self.files)))
        if self._told in (None, found, sum(found)):
            return found
        files = f"the {len(found)} files hold {sum(found)} examples: {', '.join(map(str, found))}"
        if len(found) == 1:
            files = f"{self.files[0]} holds {found[0]} examples"
        raise DataError(f"num_examples={self._asked} was asked for, but {files}. Correct it or leave it out.")

    def require_counts(self) -> None:
        """Compare the numbers that were told with the files, by their sizes where all examples have one size.

        Raises:
            DataError: a file that holds more or fewer examples; what comes after the last one would never be read.
        """
        if self.is_remote and not self.compression:
            in_parallel(self._agrees, range(len(self.files)))
        for file, (path, count) in enumerate(zip(self.files, self.counts, strict=True)):
            if self.compression:
                first, held = first_length(path, self.compression), unpacked_size(path)
                agrees = first is not None and (count * first - held) % 2**32 == 0
            else:
                agrees = self._agrees(file)
            if not agrees and (found := self._find(file)[0]) != count:
                raise DataError(
                    f"{path} should hold {count} examples, found {found}: its index does not belong to it. Write the "
                    "set again, with mk.data.write_records."
                )

    def per_buffer(self, file: int) -> int:
        """About how many examples of a local file lie in a buffer; 1 where that is unknown."""
        return 1 if self.reads_through else max(1, BUFFER * self.counts[file] // max(1, self._size(file)))

    def segment(self, file: int, first: int, count: int) -> Segment:
        """How to read `count` examples of a file from the `first` on; of one at an address see `segments`."""
        offset, skip = self._place(file, first)
        if self.compression:  # where they lie among the compressed bytes is unknown; about here
            length = -(-self._size(file) * (first + count) // max(1, self.counts[file]))
        elif first + count == self.counts[file]:
            length = self._size(file) - offset
        else:
            length = self._place(file, first + count)[0] - offset
        return Segment(offset, skip, count, length)

    def segments(self, file: int, first: int, count: int) -> list[Segment]:
        """How to read `count` examples of a file from the `first` on; of one at an address, several small segments."""
        if not self.is_remote:
            return [self.segment(file, first, count)]
        if self.compression:
            return [self.whole(file)._replace(skip=first, size=count)]
        found = []
        records, offsets = self._cuts(file)
        for place in range(bisect.bisect_right(records, first) - 1, bisect.bisect_left(records, first + count)):
            begin, end = max(first, records[place]), min(first + count, records[place + 1])
            # what is known of places within the cut: exact ones, or every 32nd
            offset, skip = max((offsets[place], begin - records[place]), self._place(file, begin))
            after = min(offsets[place + 1], self._after(file, end))
            found.append(Segment(offset, skip, end - begin, after - offset))
        return found

    def whole(self, file: int) -> Segment:
        """How to read a whole file."""
        return Segment(0, 0, sys.maxsize, self._size(file))

    def _after(self, file: int, record: int) -> int:
        """An offset in a file behind all examples before the one with the number `record`."""
        if self._one_size and self._agrees(file):
            return record * (self._size(file) // self.counts[file])
        return self._find(file)[1][-(-record // _EVERY)]

    def _cuts(self, file: int) -> tuple[list[int], list[int]]:
        """Where an uncompressed file is cut into segments: the numbers of the first examples and their offsets."""
        count, size = self.counts[file], self._size(file)
        if self._one_size and self._agrees(file):
            per_piece = max(1, PIECE * count // size)
            records = [*range(0, count, per_piece), count]
            return records, [record * (size // count) for record in records]
        self._require_found(file)
        return self._found_cuts[file]

    def _place(self, file: int, record: int) -> tuple[int, int]:
        """An offset in a file, and how many examples lie between it and the one with the number `record`."""
        if self.compression:
            return 0, record
        if self._one_size and self._agrees(file):
            return record * (self._size(file) // self.counts[file]), 0
        self._require_found(file)
        offsets = self._find(file)[1]
        offset, skip = offsets[record // _EVERY], record % _EVERY
        if skip and is_local(self.files[file]):
            lengths = list(itertools.islice(lengths_by_headers(self.files[file], offset), skip))
            offset, skip = offset + sum(lengths), 0  # fewer where the file was cut off since
        return offset, skip

    def _require_found(self, file: int) -> None:
        count = self._find(file)[0]
        if count < self.counts[file]:
            raise DataError(
                f"{self.files[file]} should hold {self.counts[file]} examples, found {count}. Correct num_examples, "
                "or write the file again."
            )

    def _agrees(self, file: int) -> bool:
        """Whether all examples have one size, as the first one's header confirms."""
        if file not in self._agreeing:
            first = first_length(self.files[file], self.compression)
            self._agreeing[file] = first is not None and self._size(file) == self.counts[file] * first
        return self._agreeing[file]

    def _size(self, file: int) -> int:
        if file not in self._bytes:
            with file_errors(f"{self.files[file]} cannot be read", CURE):
                self._bytes[file] = size_of(self.files[file])
        return self._bytes[file]

    def _find(self, file: int) -> tuple[int, array[int]]:
        if file not in self._found:
            path = self.files[file]
            lengths = lengths_of(path, self.compression)
            offset, count, offsets = 0, 0, array("q")
            records, cuts = [0], [0]
            for count, length in enumerate(lengths, 1):
                if count % _EVERY == 1:
                    offsets.append(offset)
                if offset + length - cuts[-1] > PIECE and offset > cuts[-1]:  # at least one record
                    records.append(count - 1)
                    cuts.append(offset)
                offset += length
            offsets.append(offset)
            self._found_cuts[file] = [*records, count], [*cuts, offset]
            self._found[file] = count, offsets
        return self._found[file]
