"""Objects at an address: calls that are tried again, new objects, what is not installed."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import pytest

from mirrorkit import object_storage
from mirrorkit.errors import ArgumentError
from mirrorkit.object_storage import ObjectStorage

fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed: pip install fsspec")


@pytest.fixture
def storage() -> Any:
    """A folder in memory, empty at the beginning."""
    system = fsspec.filesystem("memory")
    system.store.clear()
    yield ObjectStorage("memory://bucket/folder/")
    system.store.clear()


def test_objects(storage: ObjectStorage, tmp_path: Path) -> None:
    assert storage.names() == []
    (tmp_path / "file").write_bytes(b"one")
    storage.upload(tmp_path / "file", "one")
    storage.write("two", b"2")
    ObjectStorage("memory://bucket/folder/within").write("three", b"3")
    assert storage.names() == ["one", "two"], "those of folders within are not of this one"
    assert storage.paths() == ["one", "two", "within/three"]
    assert ObjectStorage("memory://bucket/folder/one").paths() == [""]
    assert ObjectStorage("memory://bucket/fold").paths() == []
    storage.download("one", tmp_path / "again", 3)
    assert (tmp_path / "again").read_bytes() == storage.read("one") == b"one"
    storage.remove("one")
    storage.remove("one")
    assert storage.names() == ["two"]
    with pytest.raises(FileNotFoundError):
        storage.read("one")


def test_what_the_network_makes_fail_is_tried_again(storage: ObjectStorage, monkeypatch: Any) -> None:
    waits: list[float] = []
    monkeypatch.setattr(object_storage.time, "sleep", waits.append)
    system = type(storage._system)
    failures = iter([ConnectionError("reset"), OSError("503 Slow Down"), None, ConnectionError("the answer was lost")])
    pipe = system.pipe_file

    def pipe_file(self: Any, *args: Any, **options: Any) -> None:
        failure = next(failures, None)
        if failure is not None and "lost" not in str(failure):
            raise failure
        pipe(self, *args, **options)
        if failure is not None:
            raise failure

    monkeypatch.setattr(system, "pipe_file", pipe_file)
    drawn = random.getstate()
    storage.write("a", b"1")
    assert (storage.read("a"), len(waits)) == (b"1", 2)
    assert random.getstate() == drawn, "the seeds that Keras draws do not depend on the network"
    assert storage.create("b", b"mine"), "the call that was made again finds its own object"
    assert not storage.create("b", b"theirs")
    assert 0.5 * 0.5 <= waits[0] <= 1.5 * 0.5 <= 1.5 * waits[1]


def test_what_does_not_pass_is_raised(storage: ObjectStorage, monkeypatch: Any) -> None:
    waits: list[float] = []
    monkeypatch.setattr(object_storage.time, "sleep", waits.append)

    def fails(*args: Any, **options: Any) -> None:
        raise PermissionError("no")

    monkeypatch.setattr(type(storage._system), "pipe_file", fails)
    with pytest.raises(PermissionError):
        storage.write("a", b"1")
    assert not waits
    monkeypatch.setattr(type(storage._system), "ls", lambda *args, **options: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        storage.names()
    assert len(waits) == 5


def test_folders_of_a_local_address_are_made(tmp_path: Path) -> None:
    storage = ObjectStorage(f"file://{tmp_path}/new/run")
    assert storage.names() == []
    storage.write("a", b"1")
    assert (tmp_path / "new" / "run" / "a").read_bytes() == b"1"


def test_what_is_not_installed_is_named(monkeypatch: Any) -> None:
    for address, words in (("gs://bucket/run", "gcsfs"), ("nowhere://run", "Protocol not known: nowhere")):
        monkeypatch.setitem(sys.modules, "gcsfs", None)
        with pytest.raises(ArgumentError, match=f"{address} .*{words}"):
            ObjectStorage(address)
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(ArgumentError, match="pip install fsspec"):
        ObjectStorage("s3://bucket/run")
