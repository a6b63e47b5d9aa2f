"""Exports to an address: what an interrupted one leaves never loads, and what is not a SavedModel stays."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from training_helpers import sequential

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.errors import FileError, StepError
from mirrorkit.object_storage import ObjectStorage
from mirrorkit.train import exporting

fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed: pip install fsspec")

X = np.ones((2, 4), "float32")
PARTS = ["fingerprint.pb", "saved_model.pb", "variables/variables.data-00000-of-00001", "variables/variables.index"]


class Killed(BaseException):
    """As if the process ended there."""


@pytest.fixture
def storage(bucket: Any) -> ObjectStorage:
    return ObjectStorage("memory://bucket/models/m")


def net(value: float) -> Any:
    """A model that returns 4 times a number for X."""
    return sequential((4,), keras.layers.Dense(1, kernel_initializer=keras.initializers.Constant(value)))


def served(address: str, folder: Path) -> float | None:
    """Copy what is at the address, as the page says; return what it computes, or None where it does not load."""
    shutil.rmtree(folder, ignore_errors=True)
    system, path = fsspec.core.url_to_fs(address)
    try:
        system.get(path + "/", f"{folder}/", recursive=True)
        loaded = tf.saved_model.load(str(folder))
        return float(loaded.serve(X)[0, 0])
    except OSError:
        return None


def killed_after(calls: int, monkeypatch: Any) -> Callable[[], int]:
    """Let the process end at the call after so many that change what is stored; returns how many there were."""
    made = 0

    def counted(whole: Any) -> Any:
        def call(*args: Any) -> None:
            nonlocal made
            if made == calls:
                raise Killed
            made += 1
            whole(*args)

        return call

    for method in ("upload", "remove", "write"):
        monkeypatch.setattr(ObjectStorage, method, counted(getattr(ObjectStorage, method)))
    return lambda: made


def test_wherever_it_is_killed_either_the_old_one_loads_or_nothing(
    storage: ObjectStorage, tmp_path: Path, monkeypatch: Any
) -> None:
    old, new = net(1.0), net(2.0)
    for number, model in enumerate((old, new)):  # saved once, so that the test is fast
        exporting._write_saved_model(model, tmp_path / f"{number}", None)
    lacking = "assets/words.txt"  # in the new one
    (tmp_path / "0" / lacking).parent.mkdir(exist_ok=True)
    (tmp_path / "0" / lacking).write_text("a b c")

    def export(number: int) -> None:
        write = shutil.copytree
        monkeypatch.setattr(exporting, "_write_saved_model", lambda model, to, _: write(tmp_path / f"{number}", to))
        mk.train.export((old, new)[number], storage.address)

    calls = 0
    while True:
        export(0)
        assert storage.paths() == sorted([*PARTS, lacking])
        with monkeypatch.context() as patch:
            made = killed_after(calls, patch)
            try:
                export(1)
            except Killed:
                pass
            else:
                break
        expected = 4 if made() == 0 else None
        assert served(storage.address, tmp_path / "copy") == expected, f"after {calls} calls: {storage.paths()}"
        calls += 1
    assert calls == 2 + len(PARTS), "removals and uploads"
    assert storage.paths() == PARTS
    assert served(storage.address, tmp_path / "copy") == 8


def test_at_a_new_address_the_graph_comes_last(storage: ObjectStorage, tmp_path: Path, monkeypatch: Any) -> None:
    for calls in range(1, 1 + len(PARTS)):
        with monkeypatch.context() as patch:
            killed_after(calls, patch)
            with pytest.raises(Killed):
                mk.train.export(net(1.0), storage.address)
        assert served(storage.address, tmp_path / "copy") is None
    assert mk.train.export(net(3.0), storage.address + "/") == storage.address
    assert served(storage.address, tmp_path / "copy") == 12


def test_a_keras_file(storage: ObjectStorage, tmp_path: Path) -> None:
    model, address = net(1.0), f"{storage.address}.keras"
    assert mk.train.export(model, address) == mk.train.export(model, address + "/") == address
    fsspec.filesystem("memory").get_file("bucket/models/m.keras", tmp_path / "m.keras")
    for one, other in zip(
        model.get_weights(), keras.saving.load_model(tmp_path / "m.keras").get_weights(), strict=True
    ):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("names", "match"),
    [
        ([""], "'a file'"),
        (["saved_model.pb", "runs/first/log.csv"], "'runs/first/log.csv'"),
        (["saved_model.pb", "variables/notes.txt"], "'variables/notes.txt'"),
    ],
)
@pytest.mark.parametrize("late", [False, True], ids=["", "while the model is written"])
def test_what_is_not_a_saved_model_stays(
    storage: ObjectStorage, names: list[str], match: str, late: bool, monkeypatch: Any
) -> None:
    write = exporting._write_saved_model

    def put(*args: Any) -> None:
        for name in names:
            fsspec.filesystem("memory").pipe_file(f"/bucket/models/m/{name}".rstrip("/"), b"mine")
        if args:
            write(*args)

    if late:
        monkeypatch.setattr(exporting, "_write_saved_model", put)
    else:
        put()
    with pytest.raises(StepError, match=match):
        mk.train.export(net(1.0), storage.address)
    assert storage.paths() == sorted(names)


def test_errors_say_what_is_there(storage: ObjectStorage, monkeypatch: Any) -> None:
    with pytest.raises(StepError, match=r"\.h5 is not written"):
        mk.train.export(net(1.0), "memory://bucket/m.h5")
    mk.train.export(net(1.0), storage.address)

    def refused(*args: Any) -> None:
        raise PermissionError("Access Denied")

    def disconnected(*args: Any) -> None:
        raise RuntimeError("no route")  # what a package raises need not be an OSError

    def fails(method: str, error: Any, match: str, end: str = "") -> None:
        with monkeypatch.context() as patch:
            patch.setattr(ObjectStorage, method, error)
            with pytest.raises(FileError, match=match):
                mk.train.export(net(1.0), storage.address + end)

    fails("paths", disconnected, r"no route\. .*as it was")
    fails("remove", refused, r"Access Denied\. Nothing loads")
    fails("upload", disconnected, r"no route\. Nothing loads")
    fails("upload", disconnected, r"no route\. .*as it was", ".keras")
