"""What is read through fsspec's cache of whole files: of the right version, whole, and by several at once."""

from __future__ import annotations

import os
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from mirrorkit import data, object_storage
from mirrorkit.data import filecache
from mirrorkit.data.remote_files import RemoteFile, matching, read
from mirrorkit.errors import ArgumentError, DataError
from mirrorkit.train import Checkpoints

fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed: pip install fsspec")
pytest.importorskip("fcntl", reason="this system has no file locks")

CONTENT = bytes(range(1, 251)) * 4


def put(bucket: Any, content: bytes = CONTENT) -> RemoteFile:
    bucket.pipe("/bucket/a", content)
    (file,) = matching("filecache::memory://bucket/a")
    return file


@pytest.fixture
def downloads(bucket: Any, monkeypatch: Any) -> list[str]:
    """The paths that were downloaded, one half after the other."""
    found: list[str] = []

    def get_file(self: Any, path: str, lpath: str, **options: Any) -> None:
        found.append(path)
        content = self.cat_file(path)
        with open(lpath, "wb") as file:
            file.truncate(len(content))
            time.sleep(0.02)
            file.write(content)

    monkeypatch.setattr(type(bucket), "get_file", get_file)
    return found


def copy_of(file: RemoteFile) -> Path:
    """Where the cache holds a file."""
    return Path(filecache._known[file.as_text()].path)


def test_a_file_is_downloaded_once_and_then_no_request_is_made(downloads, bucket, monkeypatch):
    file = put(bucket)
    assert (file, read(file, 10, 20)) == ("filecache::memory://bucket/a", CONTENT[10:20])
    monkeypatch.setattr(type(bucket), "info", lambda *_, **__: pytest.fail("the store was asked"))
    assert read(file, 0, 1000) == CONTENT
    assert len(downloads) == 1


def test_another_process_finds_the_copy(downloads, bucket):
    file = put(bucket)
    read(file, 0, 10)
    filecache._cache_of.cache_clear()  # as in a new process
    filecache._known.clear()
    type(filecache._cache_of(bucket, 0)).clear_instance_cache()
    assert read(file, 0, 1000) == CONTENT
    assert len(downloads) == 1


@pytest.mark.parametrize("new", [bytes(1000), b"longer" * 400])
def test_a_file_that_is_replaced_is_another_one(new, downloads, bucket):
    old = put(bucket)
    assert read(old, 0, 1000) == CONTENT
    changed = put(bucket, new)
    assert read(old, 0, 10) == CONTENT[:10], "whose copy is still there"
    assert read(changed, 0, len(new)) == new
    with pytest.raises(DataError, match="a was replaced while in use"):
        read(old, 0, 10)
    assert read(changed, 0, len(new)) == new


def test_a_download_that_fails_leaves_nothing(downloads, bucket, monkeypatch):
    monkeypatch.setattr(object_storage.time, "sleep", lambda _: None)
    whole, failures = type(bucket).get_file, iter([ConnectionError("reset"), OSError("503")])

    def get_file(self: Any, path: str, lpath: str, **options: Any) -> None:
        if failure := next(failures, None):
            Path(lpath).write_bytes(bytes(1000))
            raise failure
        whole(self, path, lpath)

    monkeypatch.setattr(type(bucket), "get_file", get_file)
    assert read(put(bucket), 0, 1000) == CONTENT


def test_a_copy_of_another_size_is_downloaded_again(downloads, bucket):
    file = put(bucket)
    read(file, 0, 10)
    os.truncate(copy_of(file), 20)
    assert read(file, 0, 1000) == CONTENT
    shutil.rmtree(copy_of(file).parents[1])
    assert read(file, 0, 1000) == CONTENT
    assert len(downloads) == 3


def test_threads_never_read_half_a_file(downloads, bucket):
    file = put(bucket)
    found: list[bytes] = []
    threads = [threading.Thread(target=lambda: found.append(read(file, 500, 1000))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [CONTENT[500:]] * 8
    assert len(downloads) == 1


def test_other_caches_and_other_uses_are_refused_by_name(bucket):
    for chain in ("simplecache", "blockcache", "filecache::simplecache"):
        with pytest.raises(ArgumentError, match="only filecache::"):
            data.records(f"{chain}::memory://bucket/a", global_batch_size=1)
    with pytest.raises(ArgumentError, match=r"only data .* memory://bucket/runs"):
        Checkpoints("filecache::memory://bucket/runs")
    with pytest.raises(ArgumentError, match="begins like an address"):
        data.records("filecache::s3:/bucket/set", global_batch_size=1)
