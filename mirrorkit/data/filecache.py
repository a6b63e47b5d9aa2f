"""Bytes of files at addresses through fsspec's cache of whole files, guarded against what fsspec does not guard.

fsspec downloads to the place where the copy will be, and counts the copy as there from the beginning.
"""

from __future__ import annotations

import functools
import os
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from mirrorkit.errors import ArgumentError
from mirrorkit.files import one_at_a_time

PREFIX = "filecache::"  # begins an address that is read through the cache
_FOLDERS = 64  # each with one lock, and one list of its files, which fsspec writes again for each file that comes


class Copy(NamedTuple):
    """A file in the cache: where it is, and what differs after another download."""

    path: str
    state: tuple[int, int, int]


_known: dict[str, Copy] = {}


def of_known(version: str, first: int, end: int) -> bytes | None:
    """Return bytes of the copy that `remember` was told of; None where there is none, or another one has come."""
    if (copy := _known.get(version)) is None:
        return None
    with suppress(FileNotFoundError), open(copy.path, "rb") as opened:
        opened.seek(first)
        content = opened.read(end - first)
        if _state(opened) == copy.state:  # afterwards, since a download writes over the old copy
            return content
    return None


def remember(version: str, copy: Copy) -> None:
    """Let this process read a copy without asking the store again; `version` stands for an address and its content."""
    _known[version] = copy


def read(system: Any, path: str, size: int, first: int, end: int) -> tuple[bytes, Copy | None]:
    """Return bytes of a copy of the file that a store has now, and the copy; nothing where that has another size.

    Nobody reads while another thread or process downloads, and a copy that is not whole is removed.
    """
    cache = _cache_of(system, zlib.crc32(path.encode()) % _FOLDERS)
    os.makedirs(cache.storage[-1], exist_ok=True)  # somebody may have deleted it
    with one_at_a_time(Path(cache.storage[-1])):
        cache.load_cache()  # what other processes have downloaded
        for _ in range(2):  # a copy that is not whole is downloaded again
            is_whole = False
            try:
                with cache.open(path) as opened:
                    copy = Copy(opened.name, _state(opened))
                    is_whole = opened.seek(0, os.SEEK_END) == size
                    if is_whole:
                        opened.seek(first)
                        return opened.read(end - first), copy
            finally:
                if not is_whole:
                    cache.pop_from_cache(path)
    return b"", None


@functools.lru_cache(1024)
def _cache_of(system: Any, number: int) -> Any:
    """One of the caches of a file system, which compares copies with the versions that the store has now."""
    import fsspec  # type: ignore[import-untyped]

    if os.name != "posix":
        raise ArgumentError(f"{PREFIX} needs file locks, which this system does not have. Leave it out.")
    folder = fsspec.config.conf.get("filecache", {}).get("cache_storage")
    own = {"cache_storage": os.path.join(folder, str(number))} if folder else {}
    return fsspec.filesystem("filecache", fs=system, check_files=True, **own)


def _state(opened: Any) -> tuple[int, int, int]:
    found = os.fstat(opened.fileno())
    return found.st_ino, found.st_size, found.st_mtime_ns
