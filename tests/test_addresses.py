"""Addresses: which paths may be one, and the objects of a store."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import mirrorkit as mk
from mirrorkit import object_storage
from mirrorkit._keras import keras
from mirrorkit.doctor import storage as examination
from mirrorkit.errors import ArgumentError
from mirrorkit.object_storage import ObjectStorage, require_local
from mirrorkit.train.loop.callbacks import require_writable

# --- every path that mirrorkit writes to takes an address, or refuses it by name; no folder "s3:" comes into being


ROWS = np.ones((4, 2), "float32")
LOCAL = {  # which write to local paths alone
    "CSVLogger": lambda path: require_writable([keras.callbacks.CSVLogger(path + ".csv")]),
    "write_records": lambda path: mk.data.write_records(mk.data.arrays(ROWS), path),
}
BY_TENSORFLOW = {  # which take what TensorFlow opens
    "TensorBoard": lambda path: require_writable([keras.callbacks.TensorBoard(path)]),
    "ModelCheckpoint": lambda path: require_writable([keras.callbacks.ModelCheckpoint(path + ".keras")]),
    "profile": mk.timing.profile,
}
ANY = {  # which take what fsspec opens
    "Checkpoints": mk.train.Checkpoints,
    "export": lambda path: mk.train.export(keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]), path),
    "doctor": lambda path: list(examination.checkpoints(path)),
}


@pytest.fixture(autouse=True)
def _no_such_folder(tmp_path: Path, monkeypatch: Any) -> Any:
    monkeypatch.chdir(tmp_path)
    yield
    assert not list(tmp_path.glob("*:*"))


@pytest.mark.parametrize("name", [*LOCAL, *BY_TENSORFLOW, *ANY])
def test_what_only_looks_like_an_address_is_refused(name: str) -> None:
    with pytest.raises(ArgumentError, match="begins like an address"):
        {**LOCAL, **BY_TENSORFLOW, **ANY}[name]("s3:/bucket/run")


@pytest.mark.parametrize("name", [*LOCAL, *BY_TENSORFLOW])
@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_what_cannot_be_written_is_refused_by_name(name: str, scheme: str) -> None:
    call: Callable[[str], object] = {**LOCAL, **BY_TENSORFLOW}[name]
    if name in BY_TENSORFLOW and scheme == "gs":
        call(f"{scheme}://bucket/run")
    else:
        known = ".*gs://" if name in BY_TENSORFLOW else " paths;"
        with pytest.raises(ArgumentError, match=rf"{name} .*local{known}.*{scheme}://bucket/run"):
            call(f"{scheme}://bucket/run")


@pytest.mark.parametrize("method", ["fit", "evaluate"])
def test_a_loop_refuses_before_it_computes(method: str, strategy_of: Any) -> None:
    strategy = strategy_of("one_device", 1)
    with strategy.scope():
        model, optimizer = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]), keras.optimizers.SGD()
    loop = mk.train.Loop(strategy, mk.train.Step(model, optimizer, loss="mse"))
    too_late = keras.callbacks.LambdaCallback(on_train_begin=lambda logs: pytest.fail("too late"))
    too_late.on_test_begin = too_late.on_train_begin
    data = tf.data.Dataset.from_tensor_slices((ROWS, ROWS[:, :1])).batch(2)

    class Own(keras.callbacks.ModelCheckpoint):  # type: ignore[name-defined, misc]
        pass

    with pytest.raises(ArgumentError, match=r"Own .*docs/watching\.md"):
        getattr(loop, method)(data, callbacks=[too_late, [Own("s3://bucket/best.keras")]])


def test_all_workers_refuse(strategy_of: Any, monkeypatch: Any) -> None:
    from mirrorkit.train.loop import callbacks

    monkeypatch.setattr(callbacks, "is_chief", lambda strategy: False)
    test_a_loop_refuses_before_it_computes("fit", strategy_of)


def test_other_addresses_of_a_callback_are_its_own_affair() -> None:
    class Uploads(keras.callbacks.Callback):  # type: ignore[name-defined, misc]
        address = "s3://bucket/run"

    class Elsewhere(keras.callbacks.ModelCheckpoint):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            keras.callbacks.Callback.__init__(self)

    require_writable([Uploads(), Elsewhere(), keras.callbacks.RemoteMonitor("http://localhost:9000")])
    require_local("A path", "C:/runs")
    require_local("A path", "runs/s3:/b")


def test_the_doctor_writes_to_an_address_and_leaves_nothing() -> None:
    fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed: pip install fsspec")
    (found,) = examination.checkpoints("memory://doctor/runs")
    assert (found.status, found.name) == ("ok", "checkpoints")
    assert found.found == "memory://doctor/runs: an object was written and removed"
    assert not fsspec.filesystem("memory").find("/doctor")


# --- objects at an address: calls that are tried again, new objects, what is not installed


@pytest.fixture
def storage(bucket: Any) -> ObjectStorage:
    return ObjectStorage("memory://bucket/folder/")


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
    pytest.importorskip("fsspec", reason="fsspec is not installed: pip install fsspec")
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
