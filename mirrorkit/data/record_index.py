"""How many examples TFRecord files hold, and where in a file an example begins.

A record is 8 bytes that hold the length of its data, 4 bytes of checksum, the data, and 4 bytes of checksum
(https://www.tensorflow.org/tutorials/load_data/tfrecord). So a look at the lengths alone finds every record of an
uncompressed file. Compressed files, and those that are not local, have to be read through.
"""

from __future__ import annotations

import collections
import gzip
import logging
import os
import struct
import zlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from mirrorkit.data.disk import CURE, DISK_ERRORS, file_errors, reason
from mirrorkit.errors import DataError, FileError

_log = logging.getLogger("mirrorkit")

_EVERY = 32  # an offset of this many is kept: 8 bytes for 32 examples
_LENGTH = struct.Struct("<Q")
_FRAME = 16  # bytes of a record around its data
_BUFFER = 256 << 10  # bytes read at a time, as tf.data.TFRecordDataset does
_UNPACKED = 1032  # bytes at most that gzip packs into one
_BAD_GZIP = (gzip.BadGzipFile, EOFError, zlib.error)


class Segment(NamedTuple):
    """Consecutive examples of one file, and how to read them.

    Attributes:
        path: of the file.
        offset: the byte at which to begin.
        skip: how many examples to pass over from there.
        size: how many to read then.
        buffer: how many bytes to read at a time.
    """

    path: str
    offset: int
    skip: int
    size: int
    buffer: int


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
        self._bytes: dict[int, int] = {}
        self._agreeing: dict[int, bool] = {}

    @property
    def known(self) -> bool:
        """Whether `counts` is told without reading."""
        return isinstance(self._told, tuple)

    @property
    def reads_through(self) -> bool:
        """Whether counting and finding examples reads all that comes before them."""
        return bool(self.compression) or not all(map(_is_local, self.files))

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
        for file, (path, count) in enumerate(zip(self.files, self.counts, strict=True)):
            if self.compression:
                first, held = first_length(path, self.compression), _unpacked_size(path)
                agrees = first is not None and (count * first - held) % 2**32 == 0
            else:
                agrees = self._agrees(file)
            if not agrees and (found := self._find(file)[0]) != count:
                raise DataError(
                    f"{path} should hold {count} examples, found {found}: its index does not belong to it. Write the "
                    "set again, with mk.data.write_records."
                )

    def segment(self, file: int, first: int, count: int) -> Segment:
        """How to read `count` examples of a file from the `first` on."""
        offset, skip = self._place(file, first)
        if self.compression:  # where they lie among the compressed bytes is unknown; about here
            length = -(-self._size(file) * (first + count) // max(1, self.counts[file]))
        elif first + count == self.counts[file]:
            length = self._size(file) - offset
        else:
            length = self._place(file, first + count)[0] - offset
        # buffers that tile the examples: what lies behind them is not read
        buffers = max(1, -(-length // _BUFFER))
        return Segment(self.files[file], offset, skip, count, max(1 << 10, -(-length // buffers)))

    def segments(self, pieces: Iterable[tuple[int, int, int]]) -> tuple[np.ndarray, ...]:
        """How to read these `(file, first, count)`: a column for each attribute of `Segment`."""
        paths, *columns = zip(*(self.segment(*piece) for piece in pieces), strict=True)
        return (np.array(paths), *(np.array(column, np.int64) for column in columns))

    def _place(self, file: int, record: int) -> tuple[int, int]:
        """An offset in a file, and how many examples lie between it and the one with the number `record`."""
        if self.compression:
            return 0, record
        if self._one_size and self._agrees(file):
            return record * (self._size(file) // self.counts[file]), 0
        count, offsets = self._find(file)
        if count < self.counts[file]:
            raise DataError(
                f"{self.files[file]} should hold {self.counts[file]} examples, found {count}. Correct num_examples, "
                "or write the file again."
            )
        offset, skip = offsets[record // _EVERY], record % _EVERY
        if skip and _is_local(self.files[file]):
            lengths = _lengths(self.files[file], offset)
            offset, skip = offset + sum(next(lengths) for _ in range(skip)), 0
        return offset, skip

    def _agrees(self, file: int) -> bool:
        """Whether all examples have one size, as the first one's header confirms."""
        if file not in self._agreeing:
            first = first_length(self.files[file], self.compression)
            self._agreeing[file] = first is not None and self._size(file) == self.counts[file] * first
        return self._agreeing[file]

    def _size(self, file: int) -> int:
        if file not in self._bytes:
            with file_errors(f"{self.files[file]} cannot be read", CURE):
                self._bytes[file] = tf.io.gfile.stat(self.files[file]).length
        return self._bytes[file]

    def _find(self, file: int) -> tuple[int, array[int]]:
        if file not in self._found:
            path = self.files[file]
            lengths = _lengths_of(path, self.compression)
            offset, count, offsets = 0, 0, array("q")
            for count, length in enumerate(lengths, 1):
                if count % _EVERY == 1:
                    offsets.append(offset)
                offset += length
            offsets.append(offset)
            self._found[file] = count, offsets
        return self._found[file]


def count_by_reading(file: str, compression: str) -> int:
    """Read a file through and return the number of its examples; every checksum is compared.

    Raises:
        DataError: a file that is cut short or damaged, by its name.
        FileError: a file that cannot be read.
    """
    if _is_local(file):  # the lengths first: TensorFlow takes as much memory as one says
        collections.deque(_lengths_of(file, compression), maxlen=0)
    return sum(1 for _ in _read_lengths(file, compression))


def first_length(file: str, compression: str) -> int | None:
    """The bytes of a file's first record, by its header; None where there is none.

    Raises:
        DataError: more than the file can hold.
        FileError: a file that cannot be read.
    """
    with file_errors(f"{file} cannot be read", CURE), tf.io.gfile.GFile(file, "rb") as opened:
        try:
            header = (gzip.GzipFile(fileobj=opened) if compression else opened).read(_LENGTH.size)
        except _BAD_GZIP:
            return None
        most = opened.size() * (_UNPACKED if compression else 1)
    if len(header) < _LENGTH.size:
        return None
    length = int(_LENGTH.unpack(header)[0]) + _FRAME
    if length > most:
        raise _damaged(file, 0, f"the first one would have {length} bytes, the file holds {most} at most")
    return length


def _unpacked_size(file: str) -> int:
    """The number of bytes that a gzip file becomes, modulo 2**32, as its last bytes tell."""
    with file_errors(f"{file} cannot be read", CURE), tf.io.gfile.GFile(file, "rb") as opened:
        opened.seek(max(0, opened.size() - 4))
        return int.from_bytes(opened.read(4), "little")


def _read_lengths(file: str, compression: str) -> Iterator[int]:
    """The bytes of each record of a file, which is read through."""
    count = 0
    try:
        for part in tf.data.TFRecordDataset(file, compression).batch(1024):
            lengths = tf.strings.length(part).numpy() + _FRAME
            count += len(lengths)
            yield from lengths.tolist()
    except DISK_ERRORS as error:  # not the data's fault
        raise FileError(f"{file} cannot be read: {reason(error)}. {CURE}") from error
    except tf.errors.OpError as error:
        raise _damaged(file, count, reason(error)) from error


def _lengths_of(file: str, compression: str) -> Iterator[int]:
    """The bytes of each record of a file; of a local one the lengths are compared with its size."""
    if not _is_local(file):
        return _read_lengths(file, compression)
    return _unpacked_lengths(file) if compression else _lengths(file)


def _unpacked_lengths(file: str) -> Iterator[int]:
    """The bytes of each record of a local gzip file, which is read through in pieces."""
    count = 0
    with file_errors(f"{file} cannot be read", CURE), gzip.open(file) as opened:
        try:
            while header := opened.read(_LENGTH.size):
                length = int(_LENGTH.unpack(header)[0]) + _FRAME if len(header) == _LENGTH.size else _FRAME
                missing = length - len(header)
                while missing and (part := opened.read(min(missing, _BUFFER))):
                    missing -= len(part)
                if missing:
                    raise _damaged(file, count, f"{missing} of the {length} bytes of the next one are missing")
                count += 1
                yield length
        except _BAD_GZIP as error:
            raise _damaged(file, count, str(error)) from error


def _lengths(file: str, offset: int = 0) -> Iterator[int]:
    """The bytes of each record of a local, uncompressed file from an offset on; only their headers are read."""
    with file_errors(f"{file} cannot be read", CURE):
        opened = os.open(file, os.O_RDONLY)
        try:
            size, count = os.fstat(opened).st_size, 0
            while offset < size:
                header = os.pread(opened, 8, offset)
                length = _LENGTH.unpack(header)[0] + _FRAME if len(header) == 8 else _FRAME
                offset += length
                if offset > size:
                    raise _damaged(file, count, f"the next one would end at byte {offset}, the file has {size}")
                count += 1
                yield length
        finally:
            os.close(opened)


def _damaged(file: str, count: int, why: str) -> DataError:
    return DataError(f"{file} is cut short or damaged after {count} examples: {why}.")


def _is_local(file: str) -> bool:
    return "://" not in file
