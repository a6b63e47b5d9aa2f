"""The cache of what is read at addresses: bounded, shared, and never with anything in it that is not whole."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mirrorkit import subprocesses
from mirrorkit.data import remote_files, staging
from mirrorkit.data.remote_files import RemoteFile
from mirrorkit.data.staging import Cache, Piece
from mirrorkit.errors import ArgumentError, DataError, FileError

fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed: pip install fsspec")
pytest.importorskip("fcntl", reason="this system has no file locks")

KILLED = """
import sys, time
from pathlib import Path
from mirrorkit.data import staging
from mirrorkit.data.staging import Cache, Piece

def read(file, first, end):
    if first:
        print("half", flush=True)
        time.sleep(600)
    return b"x" * (end - first)

staging.read, staging.PIECE = read, 50
with Cache(Path(sys.argv[1]), 1000).staged(Piece.of_text(sys.argv[2])):
    pass
"""


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    (tmp_path / "cache").mkdir()
    return Cache(tmp_path / "cache", 1000)


@pytest.fixture
def reads(bucket: Any, monkeypatch: Any) -> list[tuple[str, int, int]]:
    """What is asked of the store."""
    asked: list[tuple[str, int, int]] = []

    def read(file: RemoteFile, first: int, end: int) -> bytes:
        asked.append((os.path.basename(file), first, end))
        return remote_files.read(file, first, end)

    monkeypatch.setattr(staging, "read", read)
    return asked


def put(bucket: Any, name: str, content: bytes) -> Piece:
    bucket.pipe(f"/bucket/{name}", content)
    return Piece.whole(remote_files.matching(f"memory://bucket/{name}")[0])


def pieces(bucket: Any, count: int, size: int = 100) -> list[Piece]:
    return [put(bucket, str(i), bytes([i]) * size) for i in range(count)]


def held(cache: Cache) -> dict[str, int]:
    """The pieces in a cache, and their sizes."""
    return {path.name: path.stat().st_size for path in cache.folder.iterdir() if path.name != "bytes"}


def counted(cache: Cache) -> int:
    return int((cache.folder / "bytes").read_text())


def test_a_piece_is_downloaded_once(cache, reads, bucket, monkeypatch):
    monkeypatch.setattr(staging, "PIECE", 40)
    whole = put(bucket, "a", bytes(range(100)))
    piece = whole._replace(ranges=((10, 20), (50, 95)))
    assert Piece.of_text(piece.as_text()) == piece
    assert Piece.of_text(piece.as_text()).file.mark == whole.file.mark != ""
    for _ in range(3):
        assert cache.content(piece) == bytes([*range(10, 20), *range(50, 95)])
    assert reads == [("a", 10, 20), ("a", 50, 90), ("a", 90, 95)]
    assert list(held(cache).values()) == [55] == [counted(cache)]
    assert cache.content(put(bucket, "empty", b"")) == b""


def test_the_least_recently_used_pieces_are_removed(cache, reads, bucket):
    several = pieces(bucket, 12)
    for number, piece in enumerate(several[:10]):
        with cache.staged(piece) as path:
            os.utime(path, ns=(number, number))
    with cache.staged(several[0]):  # which is now the last one
        pass
    assert sum(held(cache).values()) == 1000
    assert cache.content(several[10]) == bytes([10]) * 100
    assert counted(cache) == sum(held(cache).values()) <= 1000
    asked = len(reads)
    cache.content(several[0])
    cache.content(several[9])
    assert len(reads) == asked, "these stayed"
    cache.content(several[1])
    assert len(reads) == asked + 1, "this one was removed"


def test_what_is_being_read_stays_and_the_bound_holds(cache, bucket, monkeypatch):
    monkeypatch.setattr(staging, "_PATIENCE", 0.0)
    several = pieces(bucket, 30)
    with cache.staged(several[0]) as path, cache.staged(several[1]):
        for piece in several[2:]:
            cache.content(piece)
            assert sum(held(cache).values()) <= 1000
        assert Path(path).read_bytes() == bytes([0]) * 100
        large = put(bucket, "large", bytes(850))
        with pytest.raises(FileError, match=r"large needs 850 bytes in the cache .*; data being read leaves no room"):
            cache.content(large)
    assert cache.content(large) == bytes(850), "now there is room"
    with pytest.raises(FileError, match=r"needs 1001 bytes .* whose limit is 1000\. Let MIRRORKIT_CACHE name a folder"):
        cache.content(put(bucket, "larger", bytes(1001)))


def test_who_finds_no_room_waits_for_what_others_read(cache, bucket):
    one, other = put(bucket, "one", bytes(900)), put(bucket, "other", bytes(800))
    with cache.staged(one):
        thread = threading.Thread(target=cache.content, args=(other,))
        thread.start()
        thread.join(0.3)
        assert thread.is_alive()
    thread.join()
    assert list(held(cache).values()) == [800]


def test_a_piece_that_is_removed_before_it_is_opened_comes_again(cache, reads, bucket, monkeypatch):
    (piece,) = pieces(bucket, 1)
    cache.content(piece)
    lock, times = staging.fcntl.flock, iter([True])

    def flock(descriptor: int, kind: int) -> None:
        if kind == staging.fcntl.LOCK_SH and next(times, False):  # it has been opened, and not been locked
            next(path for path in cache.folder.iterdir() if path.name != "bytes").unlink()
        lock(descriptor, kind)

    monkeypatch.setattr(staging.fcntl, "flock", flock)
    with cache.staged(piece) as path:
        assert Path(path).read_bytes() == bytes(100)
    assert len(reads) == 2


@pytest.mark.slow
def test_what_a_killed_download_leaves_is_never_read(cache, bucket):
    piece = put(bucket, "a", bytes(range(100)))
    command = [sys.executable, "-c", KILLED, cache.folder, piece.as_text()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=subprocesses.with_mirrorkit(os.environ)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"half\n"
        assert list(held(cache).values()) == [50]
        assert not (cache.folder / cache._path(piece).name).exists()
        process.send_signal(signal.SIGKILL)
    assert cache.content(piece) == bytes(range(100))
    assert list(held(cache).values()) == [100]
    (cache.folder / ("0" * 64 + ".700")).write_bytes(b"left, too")
    assert cache.content(put(bucket, "b", bytes(850))) == bytes(850)
    assert counted(cache) == sum(held(cache).values()) == 950, "what is left takes no room"


def test_several_that_want_a_piece_download_it_once(cache, reads, bucket):
    several = pieces(bucket, 8) * 6
    np.random.default_rng(0).shuffle(several)
    found: list[bool] = []
    threads = [
        threading.Thread(target=lambda p=piece: found.append(cache.content(p) == bytes([int(p.file[-1])]) * 100))
        for piece in several
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 48
    assert len(reads) == 8


def test_a_file_that_is_replaced_is_another_one(cache, bucket):
    old = put(bucket, "a", b"old")
    assert cache.content(old) == b"old"
    new = put(bucket, "a", b"new")
    assert (cache.content(new), cache.content(old)) == (b"new", b"old"), "who found the old one keeps it"
    for path in held(cache):
        (cache.folder / path).unlink()
    with pytest.raises(DataError, match=r"a was replaced while in use: found created=.* write the new ones"):
        cache.content(old)
    assert not held(cache)
    assert cache.content(new) == b"new"


def test_a_file_that_is_replaced_while_it_is_downloaded_is_not_kept(cache, bucket, monkeypatch):
    piece = put(bucket, "a", bytes(100))
    read = remote_files.read
    monkeypatch.setattr(staging, "PIECE", 40)

    def meanwhile(file: RemoteFile, first: int, end: int) -> bytes:
        content = read(file, first, end)
        bucket.pipe("/bucket/a", bytes([1]) * 100)
        return content

    monkeypatch.setattr(staging, "read", meanwhile)
    with pytest.raises(DataError, match="a was replaced while in use"):
        cache.content(piece)
    assert not held(cache)


def test_a_copy_of_another_size_is_downloaded_again(cache, reads, bucket):
    (piece,) = pieces(bucket, 1)
    with cache.staged(piece) as path:
        pass
    os.truncate(path, 20)
    assert cache.content(piece) == bytes(100)
    assert len(reads) == 2


def test_a_full_disk_is_named_and_leaves_nothing(cache, bucket, monkeypatch):
    def full(descriptor: int, content: bytes) -> None:
        os.write(descriptor, content[:10])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (piece,) = pieces(bucket, 1)
    with monkeypatch.context() as patched:
        patched.setattr(staging, "_write", full)
        with pytest.raises(FileError, match=r"No space left on device\. Let MIRRORKIT_CACHE name a folder on a larger"):
            cache.content(piece)
    assert (held(cache), counted(cache)) == ({}, 0)
    assert cache.content(piece) == bytes(100)


def test_where_the_cache_lies_and_how_large_it_is(tmp_path, monkeypatch):
    monkeypatch.setattr(staging.tempfile, "gettempdir", lambda: str(tmp_path))
    for name in ("MIRRORKIT_CACHE", "MIRRORKIT_CACHE_SIZE"):
        monkeypatch.delenv(name, raising=False)
    staging._cache.cache_clear()
    own = tmp_path / f"mirrorkit-cache-{os.getuid()}"
    cache = staging.cache()
    free = os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize
    assert (cache.folder, own.stat().st_mode & 0o777) == (own, 0o700)
    assert 0.4 * free < cache.limit < 0.6 * free
    own.chmod(0o777)
    staging._cache.cache_clear()
    with pytest.raises(
        FileError, match=r"is not a folder that belongs to you alone\. Remove it, or set MIRRORKIT_CACHE"
    ):
        staging.cache()
    monkeypatch.setenv("MIRRORKIT_CACHE", str(tmp_path / "large"))
    for text, size in (("200GB", 200 * 10**9), ("1.5 mb", 1_500_000), ("700", 700)):
        monkeypatch.setenv("MIRRORKIT_CACHE_SIZE", text)
        assert staging.cache().limit == size
    for text in ("much", "10 GiB", "-1"):
        monkeypatch.setenv("MIRRORKIT_CACHE_SIZE", text)
        with pytest.raises(ArgumentError, match=f"MIRRORKIT_CACHE_SIZE='{text}' was set; .* such as 200GB"):
            staging.cache()
    staging._cache.cache_clear()


def test_nothing_of_others_is_removed(tmp_path, bucket, monkeypatch):
    (tmp_path / "mine").write_bytes(bytes(5000))
    monkeypatch.setenv("MIRRORKIT_CACHE", str(tmp_path))
    monkeypatch.setenv("MIRRORKIT_CACHE_SIZE", "1000")
    cache = staging.cache()
    (cache.folder / "notes").write_bytes(bytes(5000))
    for piece in pieces(bucket, 20):
        cache.content(piece)
    assert sum(held(cache).values()) <= 6000
    assert (tmp_path / "mine").stat().st_size == (cache.folder / "notes").stat().st_size == 5000
