"""The lengths of the records in TFRecord files: by their headers, or by reading the files through.

A record is 8 bytes that hold the length of its data, 4 bytes of checksum, the data, and 4 bytes of checksum
(https://www.tensorflow.org/tutorials/load_data/tfrecord). So a look at the lengths alone finds every record of an
uncompressed file. Compressed files have to be read through.
"""

from __future__ import annotations

import collections
import gzip
import io
import os
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from mirrorkit.data.disk import CURE, DISK_ERRORS, file_errors, reason
from mirrorkit.data.remote_files import PIECE, RemoteFile, copied, local, opened, size_of
from mirrorkit.errors import DataError, FileError

BUFFER = 256 << 10  # bytes read at a time, as tf.data.TFRecordDataset does
_HEADER = 8  # bytes that hold a length
_FRAME = 16  # bytes of a record around its data
_UNPACKED = 1032  # bytes at most that gzip packs into one
_BAD_GZIP = (gzip.BadGzipFile, EOFError, zlib.error)


def count_by_reading(file: str, compression: str, copy: str = "") -> int:
    """Read a file, or a copy of it, through and return the number of its examples; every checksum is compared.

    Raises:
        DataError: a file that is cut short or damaged, by its name.
        FileError: a file that cannot be read.
    """
    path = copy or file
    try:
        if is_local(path):  # the lengths first: TensorFlow takes as much memory as one says
            collections.deque(lengths_of(path, compression), maxlen=0)
        return sum(map(len, parts_of(path, tf.data.TFRecordDataset(path, compression).batch(1024), 0)))
    except (DataError, FileError) as error:
        raise type(error)(str(error).replace(path, file)) from error  # of a copy, the address


def first_record(file: str, compression: str) -> bytes | None:
    """The data of a file's first record; None where there is none.

    Raises:
        DataError: more than the file can hold.
        FileError: a file that cannot be read.
        tf.errors.OpError: a file that is damaged there.
    """
    where = local(file)
    if isinstance(file, RemoteFile) and not compression:
        where = copied(file, 0, min(file.size, first_length(file, compression) or 0))
    with where as path:
        record = next(iter(tf.data.TFRecordDataset(path, compression, 4096).take(1)), None)
    return None if record is None else record.numpy()


def first_length(file: str, compression: str) -> int | None:
    """The bytes of a file's first record, by its header; None where there is none. See `lengths_of`."""
    return next(lengths_of(file, compression, _HEADER), None)


def parts_of(file: str, parts: tf.data.Dataset, first: int) -> Iterator[np.ndarray]:
    """Yield the examples of a file from the `first` on, which are those of a dataset, several at a time.

    Raises:
        DataError: a file that is cut short or damaged, by its name.
        FileError: a file that cannot be read.
    """
    try:
        for part in parts:
            yield part.numpy()
            first += len(part)
    except DISK_ERRORS as error:  # not the data's fault
        raise FileError(f"{file} cannot be read: {reason(error)}. {CURE}") from error
    except tf.errors.OpError as error:
        raise DataError(f"{file} is cut short or damaged, at example {first} or later: {reason(error)}.") from error


def lengths_of(file: str, compression: str, piece: int = PIECE) -> Iterator[int]:
    """The bytes of each record of a file; of an uncompressed one only the headers are looked at.

    A file at an address is read in pieces of so many bytes.

    Raises:
        DataError: a file that is cut short or damaged, by its name.
        FileError: a file that cannot be read.
    """
    count = 0
    with file_errors(f"{file} cannot be read", CURE), _stream(file, piece) as stream:
        left = size_of(file) * (_UNPACKED if compression else 1)
        content = gzip.GzipFile(fileobj=stream) if compression else stream
        try:
            while header := content.read(_HEADER):
                length = int.from_bytes(header, "little") + _FRAME
                if len(header) < _HEADER or length > left:
                    raise _damaged(file, count, f"the next one would have {length} bytes, more than are there")
                yield length
                left, rest = left - length, length - len(header)
                if not compression:
                    content.seek(rest, os.SEEK_CUR)
                    rest = 0
                while rest and (part := content.read(min(rest, BUFFER))):
                    rest -= len(part)
                if rest:
                    raise _damaged(file, count, f"{rest} of the {length} bytes of the next one are missing")
                count += 1
        except _BAD_GZIP as error:
            raise _damaged(file, count, str(error)) from error


def _stream(file: str, piece: int) -> Any:
    """Open a file to read many small parts of it."""
    if isinstance(file, RemoteFile):
        return io.BufferedReader(opened(file), piece)
    return open(file, "rb", 0) if is_local(file) else opened(file)


def _damaged(file: str, count: int, why: str) -> DataError:
    return DataError(f"{file} is cut short or damaged after {count} examples: {why}.")


def is_local(file: str) -> bool:
    """Return whether a path is one of this machine's file systems."""
    return "://" not in file
