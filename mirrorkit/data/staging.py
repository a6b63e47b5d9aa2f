"""A cache on this machine of what is read of files at addresses, bounded in size and shared by all processes.

What is staged is a piece: some consecutive bytes of one version of a file. Its name in the cache is made of both, so
that a file which is replaced at its address never mixes with an old copy. A piece is written under another name, beside
a lock, and renamed when it is whole: a process that is killed leaves nothing that looks whole, and of several that want
a piece one downloads it. Who reads a piece holds a lock on it, and what is locked is never removed.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from mirrorkit.data.disk import file_errors
from mirrorkit.data.remote_files import PIECE, RemoteFile, read, require_unchanged
from mirrorkit.errors import ArgumentError, FileError
from mirrorkit.files import one_at_a_time

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_FOLDER, _SIZE = "MIRRORKIT_CACHE", "MIRRORKIT_CACHE_SIZE"
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_CURE = f"Let {_FOLDER} name a folder on a larger disk, or correct {_SIZE} (such as 200GB)."
_NAME = re.compile(r"[0-9a-f]{64}(\.\d+)?")  # of a piece; of one that is not whole yet, with its size
_BYTES = "bytes"  # the file that says how many the cache holds
_PATIENCE = 60.0  # seconds that a piece waits for others to be given back


class Piece(NamedTuple):
    """Bytes of a file at an address that are staged together, in one file.

    Attributes:
        file: where they lie.
        ranges: their first byte, and the one after the last.
    """

    file: RemoteFile
    ranges: tuple[tuple[int, int], ...]

    @property
    def size(self) -> int:
        """How many bytes there are."""
        return sum(end - first for first, end in self.ranges)

    def as_text(self) -> str:
        """Return it as a text that a tensor can hold."""
        ranges = ",".join(f"{first}-{end}" for first, end in self.ranges)
        return f"{ranges}\n{self.file.size}\n{self.file.mark}\n{self.file}"

    @classmethod
    def of_text(cls, text: str) -> Piece:
        """Return the piece that `as_text` made a text of."""
        ranges, size, mark, address = text.split("\n", 3)
        bounds = [tuple(map(int, one.split("-"))) for one in ranges.split(",")]
        return cls(RemoteFile(address, int(size), mark), tuple((first, end) for first, end in bounds))

    @classmethod
    def whole(cls, file: RemoteFile) -> Piece:
        """Return all bytes of a file."""
        return cls(file, ((0, file.size),))


class Cache:
    """A folder of pieces.

    Args:
        folder: where they lie.
        limit: how many bytes they may have together.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder, self.limit = folder, limit

    @contextlib.contextmanager
    def staged(self, piece: Piece) -> Iterator[str]:
        """Give the path of a copy on this machine, which stays until the end of the block.

        Raises:
            DataError: the file is not there any more, or was replaced.
            FileError: a store that does not give it; a disk or a cache that is too small.
        """
        while (descriptor := self._held(piece)) is None:
            self._download(piece)
        try:
            yield os.fspath(self._path(piece))
        finally:
            os.close(descriptor)

    def content(self, piece: Piece) -> bytes:
        """Return the bytes of a piece, from the cache."""
        with self.staged(piece) as path, open(path, "rb") as opened:
            return opened.read()

    def trim(self) -> None:
        """Remove what is more than the limit, as when it was larger before."""
        with one_at_a_time(self.folder):
            self._make_room(0, None)

    def _path(self, piece: Piece) -> Path:
        return self.folder / hashlib.sha256(piece.as_text().encode()).hexdigest()

    def _held(self, piece: Piece) -> int | None:
        """Open a copy and lock it against removal; None where there is none."""
        path = self._path(piece)
        with file_errors(f"{path}, a copy of {piece.file}, cannot be read", _CURE):
            try:
                descriptor = os.open(path, os.O_RDONLY)
            except FileNotFoundError:
                return None
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            if not _is_at(descriptor, path):  # it was removed meanwhile
                os.close(descriptor)
                return None
            if os.fstat(descriptor).st_size != piece.size:  # somebody else wrote to it
                path.unlink(missing_ok=True)
                os.close(descriptor)
                return None
            os.utime(path)  # the least recently used one is removed first
            return descriptor

    def _download(self, piece: Piece) -> None:
        """Make a copy, or wait while another thread or process does."""
        path, size = self._path(piece), piece.size
        unfinished = self.folder / f"{path.name}.{size}"
        if size > self.limit:
            raise FileError(
                f"{piece.file} needs {size} bytes in the cache {self.folder}, whose limit is {self.limit}. {_CURE}"
            )
        deadline = time.monotonic() + _PATIENCE
        while True:
            with file_errors(f"{self.folder} cannot be written to", _CURE), one_at_a_time(self.folder):
                if path.exists():
                    return
                descriptor = os.open(unfinished, os.O_RDWR | os.O_CREAT, 0o600)
                is_ours = _locked(descriptor)
                has_room = is_ours and self._make_room(size, unfinished)
                if is_ours and not has_room:
                    unfinished.unlink()
            try:
                if has_room:
                    self._fill(piece, descriptor, unfinished)
                    return
                if not is_ours:
                    fcntl.flock(descriptor, fcntl.LOCK_SH)  # until the other one has ended
                    deadline = time.monotonic() + _PATIENCE
            finally:
                os.close(descriptor)
            if is_ours and time.monotonic() > deadline:
                raise FileError(
                    f"{piece.file} needs {size} bytes in the cache {self.folder}, whose limit is {self.limit}; data "
                    f"being read leaves no room. {_CURE} Shuffled records need {PIECE >> 20} MiB for each of 64 "
                    "places, gzip ones a file for each."
                )
            if is_ours:
                time.sleep(0.1)

    def _fill(self, piece: Piece, descriptor: int, unfinished: Path) -> None:
        try:
            os.ftruncate(descriptor, 0)  # what a killed process has left
            parts = [(at, min(at + PIECE, end)) for first, end in piece.ranges for at in range(first, end, PIECE)]
            for part in parts:
                content = read(piece.file, *part)
                with file_errors(f"The cache {self.folder} cannot be written to", _CURE):
                    _write(descriptor, content)
            require_unchanged(piece.file)
            with file_errors(f"The cache {self.folder} cannot be written to", _CURE), one_at_a_time(self.folder):
                os.rename(unfinished, self._path(piece))
        except BaseException:
            with contextlib.suppress(OSError), one_at_a_time(self.folder):
                unfinished.unlink(missing_ok=True)
                self._count(self._counted() - piece.size)
            raise

    def _make_room(self, size: int, own: Path | None) -> bool:
        """Remove what was not used for the longest time, if need be; return whether there is room, and take it."""
        held = self._counted()
        if held + size > self.limit:
            entries = []
            held = 0
            for entry in os.scandir(self.folder):
                if not _NAME.fullmatch(entry.name) or (own and entry.name == own.name):
                    continue
                with contextlib.suppress(FileNotFoundError):
                    length = int(entry.name.partition(".")[2] or entry.stat().st_size)
                    # what is unfinished and not locked was left by a killed process
                    entries.append(("." not in entry.name, entry.stat().st_mtime_ns, length, entry.path))
                    held += length
            for is_whole, _, length, path in sorted(entries):
                # some more than is needed, or each piece would look through the whole cache
                if is_whole and held + size <= self.limit - self.limit // 20:
                    break
                if _removed(path):
                    held -= length
        has_room = held + size <= self.limit
        self._count(held + size * has_room)
        return has_room

    def _counted(self) -> int:
        try:
            return int((self.folder / _BYTES).read_text())
        except (FileNotFoundError, ValueError):  # a new cache, or a process was killed
            return self.limit + 1  # look

    def _count(self, number: int) -> None:
        (self.folder / _BYTES).write_text(str(number))


def local(file: str) -> contextlib.AbstractContextManager[str]:
    """Give the path of a file that TensorFlow can read: the file itself, or of one at an address a copy."""
    return cache().staged(Piece.whole(file)) if isinstance(file, RemoteFile) else contextlib.nullcontext(file)


def cache() -> Cache:
    """Return the cache of this machine.

    Raises:
        ArgumentError: a size that cannot be read, or a system without file locks.
        FileError: a folder that cannot be used.
    """
    return _cache(os.environ.get(_FOLDER, ""), os.environ.get(_SIZE, ""))


@functools.cache
def _cache(folder: str, size: str) -> Cache:
    if fcntl is None:
        raise ArgumentError("Data at addresses needs file locks, which this system does not have. Copy the files.")
    where = _own_folder() if not folder else Path(folder).expanduser() / "mirrorkit-cache"  # nothing of others in it
    with file_errors(f"{where} cannot be made", _CURE):
        where.mkdir(mode=0o700, parents=True, exist_ok=True)
        held = sum(entry.stat().st_size for entry in os.scandir(where))
        cache = Cache(where, _bytes_of(size) if size else (shutil.disk_usage(where).free + held) // 2)
        cache.trim()
        return cache


def _own_folder() -> Path:
    """The folder in the system's temporary one, where anybody could have put another of that name."""
    folder = Path(tempfile.gettempdir(), f"mirrorkit-cache-{os.getuid()}")
    with file_errors(f"{folder} cannot be made", _CURE):
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise FileError(f"{folder} is not a folder that belongs to you alone. Remove it, or set {_FOLDER}.")
    return folder


def _bytes_of(size: str) -> int:
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([KMGT]?B|)", size.strip().upper())
    if not found:
        raise ArgumentError(f"{_SIZE}={size!r} was set; it must be a number of bytes, such as 200GB or 500MB.")
    return int(float(found[1]) * _UNITS[found[2]])


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether an open file is still the one of this name."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _locked(descriptor: int) -> bool:
    """Lock a file for this process and thread alone; return False where another one has it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _removed(path: str) -> bool:
    """Remove a file that nobody reads or writes; return whether it is gone."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return True
    try:
        if free := _locked(descriptor):
            os.unlink(path)
        return free
    finally:
        os.close(descriptor)


def _write(descriptor: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]
