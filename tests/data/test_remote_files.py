"""Files at addresses: which are meant, what is read of them, the cache, and stores that fail."""

from __future__ import annotations

import copy
import errno
import os
import pickle
import socket
import sys
from typing import Any

import pytest
import tensorflow as tf

from mirrorkit import data, object_storage
from mirrorkit.data import remote_files
from mirrorkit.data.remote_files import RemoteFile, RemoteReader, described, is_remote, listed, matching
from mirrorkit.errors import ArgumentError, DataError, FileError
from mirrorkit.train import Checkpoints

pytest.importorskip("fsspec", reason="fsspec is not installed: pip install fsspec")


@pytest.fixture
def files(bucket: Any) -> list[str]:
    paths = [f"memory://bucket/set/{name}" for name in ("a-0", "a-1", "b", "in/c", "in/er/d", "x[1]")]
    for path in paths:
        bucket.pipe(path.removeprefix("memory:/"), path.encode())
    bucket.pipe("/bucket/setting", b"not in the set")
    return paths


def test_which_files_are_meant(files):
    assert listed("memory://bucket/set/") == [*files[:3], files[5]]
    assert matching("memory://bucket/set/a-*") == files[:2]
    assert matching("memory://bucket/s*/*/c") == [files[3]]
    assert matching(files[5]) == [files[5]]
    assert matching("memory://bucket/set/nothing*") == matching("memory://bucket/set") == []
    assert listed("memory://bucket/no") == []
    found = described(files[1:])
    assert found == files[1:]
    assert [file.size for file in found] == [len(path) for path in files[1:]]
    again = listed("memory://bucket/set")[1:]
    assert {file: file.mark for file in again}.items() <= {file: file.mark for file in found}.items()
    with pytest.raises(DataError, match="set/no is not there"):
        described([files[0], "memory://bucket/set/no"])


def test_what_tensorflow_reads_itself_is_left_to_it(tmp_path):
    for path, remote in (("s3://b/a", True), ("gcs://b/a", True), ("gs://b/a", False), ("file:///a", False)):
        assert is_remote(path) == remote
    assert not is_remote(tmp_path)
    assert not is_remote("C:/data")
    with pytest.raises(ArgumentError, match="begins like an address"):
        data.records("s3:/bucket/set", global_batch_size=1)


def test_a_copy_of_a_file_is_one_too(files):
    (file,) = matching(files[2])
    for other in (copy.deepcopy(file), pickle.loads(pickle.dumps(file))):
        assert (other, other.size, other.mark) == (file, file.size, file.mark)
        assert isinstance(other, RemoteFile)


def test_a_reader_is_a_file(files):
    (file,) = matching(files[2])
    with RemoteReader(file) as reader:
        assert reader.read(3) == b"mem"
        assert reader.seek(-3, os.SEEK_END) == reader.tell() == file.size - 3
        assert reader.read(10) == b"t/b"
        assert reader.read(10) == b""


def test_what_the_network_makes_fail_is_tried_again(files, bucket, monkeypatch):
    monkeypatch.setattr(object_storage.time, "sleep", lambda _: None)
    (file,) = matching(files[2])
    failures = iter([ConnectionError("reset"), OSError("503 Slow Down")])
    cat = type(bucket).cat_file

    def cat_file(self: Any, *args: Any, **options: Any) -> bytes:
        if failure := next(failures, None):
            raise failure
        return cat(self, *args, **options)

    monkeypatch.setattr(type(bucket), "cat_file", cat_file)
    assert remote_files.read(file, 0, 6) == b"memory"


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (PermissionError("Access Denied"), FileError, "b cannot be read: .*Access Denied.* cred"),
        (OSError(errno.EIO, "broken"), FileError, "b cannot be read: .*broken"),
        (FileNotFoundError("gone"), DataError, "b is not there"),
    ],
)
def test_what_a_store_refuses_is_named(files, bucket, monkeypatch, error, kind, words):
    monkeypatch.setattr(object_storage.time, "sleep", lambda _: None)
    (file,) = matching(files[2])

    def fails(*args: Any, **options: Any) -> None:
        raise error

    monkeypatch.setattr(type(bucket), "cat_file", fails)
    with pytest.raises(kind, match=words):
        remote_files.read(file, 0, 6)
    for name in ("info", "ls"):
        monkeypatch.setattr(type(bucket), name, fails)
    if kind is FileError:
        for call in (matching, listed):
            with pytest.raises(FileError, match="set cannot be read"):
                call("memory://bucket/set")


def test_fewer_bytes_than_were_asked_for_are_never_taken(files, bucket, monkeypatch):
    (file,) = matching(files[2])
    monkeypatch.setattr(type(bucket), "cat_file", lambda *_, **__: b"few")
    with pytest.raises(FileError, match=r"its store sent 3\."):
        remote_files.read(file, 0, 6)
    bucket.pipe("/bucket/set/b", b"few")
    with pytest.raises(DataError, match="3 bytes instead of 21"):
        remote_files.read(file, 0, 6)


def test_a_store_that_does_not_answer_is_named(monkeypatch):
    pytest.importorskip("s3fs", reason="s3fs is not installed")
    monkeypatch.setattr(object_storage, "_SILENCE", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for name, value in {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{silent.getsockname()[1]}",
            **{"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"},
        }.items():
            monkeypatch.setenv(name, value)
        for make in (data.records, data.parquet):
            with pytest.raises(FileError, match=r"The store of s3://silent/set has .* 0\.5 s"):
                make("s3://silent/set", global_batch_size=1)


def test_what_is_not_there_or_not_installed_is_named(bucket, monkeypatch):
    for make in (data.records, data.parquet):
        for address in ("memory://bucket/no", "memory://bucket/no/*.x"):
            with pytest.raises(DataError, match="memory://bucket/no"):
                make(address, global_batch_size=1)
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(ArgumentError, match=r"gcs://b/a .*gcsfs"):
        data.records("gcs://b/a", global_batch_size=1)
    monkeypatch.setitem(sys.modules, "fsspec", None)
    for make in (data.records, data.parquet):
        with pytest.raises(ArgumentError, match="pip install fsspec"):
            make("s3://other/set", global_batch_size=1)


def test_an_error_within_the_data_names_the_address(bucket, tmp_path):
    data.write_records(data.synthetic(train=20, test=1).train, tmp_path / "set", num_files=1)
    bucket.put(str(tmp_path / "set"), "/bucket/set", recursive=True)
    recipe = data.records("memory://bucket/set", global_batch_size=4, shuffle=True)
    bucket.pipe("/bucket/set/data-00000-of-00001.tfrecord", b"another")
    with pytest.raises(tf.errors.OpError, match=r"DataError: memory://bucket/set/data-00000\S+ was replaced"):
        list(recipe.dataset())


def test_images_at_an_address_are_refused():
    for path in ("s3://bucket/photos", ["s3://bucket/photos/a.png"]):
        with pytest.raises(
            ArgumentError, match=r"image_folder reads files on this machine.* found 's3://bucket/photos"
        ):
            data.image_folder(path, labels=None, global_batch_size=1)


def test_caches_of_fsspec_are_refused_by_name(bucket):
    for chain in ("simplecache", "blockcache", "filecache"):
        with pytest.raises(ArgumentError, match=r"caches are not used\. Write memory://bucket/a"):
            data.records(f"{chain}::memory://bucket/a", global_batch_size=1)
    with pytest.raises(ArgumentError, match=r"caches .* memory://bucket/runs"):
        Checkpoints("filecache::memory://bucket/runs")
