"""Data files at an address such as s3://bucket/folder: find them, read parts, and see that they are still the same."""

from __future__ import annotations

import datetime
import functools
import io
import os
import posixpath
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, TypeVar

import tensorflow as tf

from mirrorkit import object_storage
from mirrorkit.data.disk import file_errors, reason
from mirrorkit.errors import ArgumentError, DataError, FileError, MirrorkitError
from mirrorkit.object_storage import is_address, tried

T = TypeVar("T")

_THREADS = 16  # files that are looked up at the same time
PIECE = 8 << 20  # bytes of a file that are asked for at a time

# What stores tell of a file that another version of it would not have: the first one that they tell is compared.
_MARKS = ("ETag", "etag", "generation", "md5Hash", "checksum", "mtime", "LastModified", "last_modified", "created")

_CHANGED = "Do not replace files that are in use: write the new ones under other names, and start again with these."


class RemoteFile(str):
    """A file at an address, which is the text of it, as the store described it when it was found.

    Attributes:
        size: in bytes.
        mark: what another version of the file would not have, such as "ETag=..."; "" where the store tells nothing.
    """

    size: int
    mark: str


def is_remote(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is an address that TensorFlow does not read itself.

    Raises:
        ArgumentError: it begins as an address does, and is none.
    """
    return is_address(path) and os.fspath(path).partition(":")[0] not in tf.io.gfile.get_registered_schemes()


def require_readable(what: str, path: str) -> None:
    """Refuse an address that TensorFlow does not read itself.

    Raises:
        ArgumentError: it is one.
    """
    if is_remote(path):
        raise ArgumentError(
            f"{what} reads files on this machine, or at gs://; found {path!r}. Copy them to a disk, or write their "
            "contents to record files, which records reads at any address."
        )


def matching(pattern: str) -> list[RemoteFile]:
    """Return the files of an address, which may be a pattern, sorted.

    Raises:
        FileError: a store that denies it, or does not answer.
    """
    try:
        entry = _asked(pattern, "info")
    except DataError:
        entry = {}
    if entry.get("type") == "file":
        return [_file(pattern, entry)]
    return _files(pattern, _asked(pattern, "glob", detail=True).values())


def listed(folder: str) -> list[RemoteFile]:
    """Return the files in a folder at an address, without those in folders, sorted; none where there is no folder.

    Raises:
        FileError: a store that denies it, or does not answer.
    """
    try:
        found = _asked(folder, "ls", detail=True)
    except DataError:
        return []
    path = _opened(folder)[1].strip("/")
    return _files(folder, [entry for entry in found if posixpath.dirname(entry["name"]).strip("/") == path])


def described(addresses: Sequence[str]) -> list[RemoteFile]:
    """Return files by their addresses, in this order, which are all looked up at the same time.

    Raises:
        DataError: a file that is not there.
        FileError: a store that denies it, or does not answer.
    """
    return list(in_parallel(lambda address: _file(address, _asked(address, "info")), addresses))


def in_parallel(call: Callable[[Any], T], files: Iterable[Any]) -> tuple[T, ...]:
    """Return what a function gives for each file, several of which wait for a store or a disk at the same time."""
    with ThreadPoolExecutor(_THREADS) as threads:
        return tuple(threads.map(call, files))


def read(file: RemoteFile, first: int, end: int) -> bytes:
    """Return the bytes of a file from `first` to `end`; the store is asked afterwards whether it is still the same.

    Raises:
        DataError: the file is not there any more, or was replaced.
        FileError: a store that denies it, or does not answer.
    """
    if first >= end:
        return b""
    content = bytes(_asked(file, "cat_file", start=first, end=end))
    require_unchanged(file)
    if len(content) != end - first:
        raise FileError(f"{file}: bytes {first} to {end} were asked for; its store sent {len(content)}.")
    return content


def require_unchanged(file: RemoteFile) -> None:
    """Ask the store whether a file is still the one that was found.

    Raises:
        DataError: it is not there any more, or was replaced.
        FileError: a store that denies it, or does not answer.
    """
    entry = _asked(file, "info")
    name = file.mark.partition("=")[0]
    found, mark = entry.get("size"), _mark(name, entry.get(name))
    if found != file.size or (mark and mark != file.mark):
        how = f"{found} bytes instead of {file.size}" if found != file.size else f"{mark} instead of {file.mark}"
        raise DataError(f"{file} was replaced while in use: found {how}. {_CHANGED}")


def versions(files: Iterable[str]) -> str:
    """Return what is another text where one of these files is another version; "" for files on this machine."""
    marks = [file.mark for file in files if isinstance(file, RemoteFile)]
    return f"{zlib.crc32(repr(marks).encode()):08x}" if marks else ""


class RemoteReader(io.RawIOBase):
    """A file at an address as one that is open; each `read` asks the store for its bytes."""

    def __init__(self, file: RemoteFile) -> None:
        self._file, self._at = file, 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to a byte."""
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._file.size}[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Read as many bytes as a buffer takes."""
        view = memoryview(buffer).cast("B")
        content = read(self._file, self._at, min(self._at + len(view), self._file.size))
        view[: len(content)] = content
        self._at += len(content)
        return len(content)


def opened(file: str) -> Any:
    """Return a file that is open to read bytes: `read` and `seek` as `tf.io.gfile.GFile` has them."""
    return RemoteReader(file) if isinstance(file, RemoteFile) else tf.io.gfile.GFile(file, "rb")


@contextmanager
def copied(file: RemoteFile, first: int, end: int) -> Iterator[str]:
    """Give the path of a temporary copy of the bytes from `first` to `end`, for TensorFlow, which reads only files.

    Raises:
        DataError: the file is not there any more, or was replaced.
        FileError: a store that does not give it; a full disk.
    """
    with ExitStack() as stack:
        with file_errors(f"{tempfile.gettempdir()} cannot hold a copy of {file}", "Let TMPDIR name a larger disk."):
            copy = stack.enter_context(tempfile.NamedTemporaryFile(prefix="mirrorkit-"))
            for at in range(first, end, PIECE):
                copy.write(read(file, at, min(at + PIECE, end)))
            copy.flush()
        yield copy.name


def local(file: str) -> AbstractContextManager[str]:
    """Give the path of a file that TensorFlow can read: the file itself, or of one at an address a copy."""
    return copied(file, 0, file.size) if isinstance(file, RemoteFile) else nullcontext(file)


def size_of(file: str) -> int:
    """Return how many bytes a file has."""
    return file.size if isinstance(file, RemoteFile) else int(tf.io.gfile.stat(file).length)


def _asked(address: str, what: str, **options: Any) -> Any:
    """Return what a method of its file system says of an address.

    Raises:
        DataError: there is no such file.
        FileError: whatever else fsspec and the packages of stores raise.
    """
    system, path = _opened(address)
    try:
        return tried(address, getattr(system, what), path, **options)
    except MirrorkitError:
        raise
    except FileNotFoundError as error:
        raise DataError(f"{address} is not there (any more).") from error
    except Exception as error:
        raise FileError(
            f"{address} cannot be read: {type(error).__name__}: {reason(error)}. Check the address, the network and "
            "your credentials for it."
        ) from error


_opened = functools.lru_cache(1024)(object_storage.opened)


def _files(given: str, found: Iterable[Mapping[str, Any]]) -> list[RemoteFile]:
    """The files among entries, with addresses that begin as the given one."""
    begin = given.rstrip("/").removesuffix(_opened(given)[1])
    entries = [entry for entry in found if entry["type"] == "file" and not entry["name"].endswith("/")]
    return sorted(_file(begin + entry["name"], entry) for entry in entries)


def _file(address: str, entry: Mapping[str, Any]) -> RemoteFile:
    marks = (_mark(name, entry.get(name)) for name in _MARKS)
    file = RemoteFile(address)
    file.size, file.mark = int(entry["size"]), next(filter(None, marks), "")
    return file


def _mark(name: str, value: Any) -> str:
    """What a store tells, or ""; listings and single answers may hold a time in two forms."""
    if isinstance(value, datetime.datetime):
        value = value.timestamp()
    return f"{name}={value}" if name and value else ""
