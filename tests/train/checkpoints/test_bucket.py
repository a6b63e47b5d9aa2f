"""Checkpoints in an object store: what readers find is whole, whose it is, and a run that goes on."""

from __future__ import annotations

import json
import logging
from typing import Any

import numpy as np
import pytest
from jobs import until
from training_helpers import Interrupted

import mirrorkit as mk
from mirrorkit import files
from mirrorkit._keras import keras
from mirrorkit.errors import CheckpointError
from mirrorkit.object_storage import ObjectStorage
from mirrorkit.train.checkpoints import place
from mirrorkit.train.checkpoints.bucket import Bucket
from mirrorkit.train.checkpoints.file import DamagedError
from mirrorkit.train.checkpoints.position import Position


@pytest.fixture
def address(bucket: Any) -> str:
    return "memory://bucket/run"


@pytest.fixture
def storage(address: str) -> ObjectStorage:
    return ObjectStorage(address)


def kinds(storage: ObjectStorage) -> dict[str, int]:
    """How many objects of each kind there are."""
    names = storage.names()
    return {
        "owners": len([name for name in names if name.startswith(".owner-")]),
        "manifests": len([name for name in names if name.endswith(".json")]),
        "objects": len([name for name in names if name.endswith(".npz")]),
    }


def written(address: str, *steps: int, first: float = 0.0) -> Bucket:
    """A place that a run has taken and written checkpoints to, after so many steps."""
    place = Bucket(address)
    place.take()
    variables = [{"path": "v", "shape": [3], "dtype": "float64"}]
    for count in steps:
        place.write(count, [np.full(3, first)], {"variables": variables, "position": Position(steps=count).as_json()})
    return place


def test_the_newest_are_kept_each_with_its_object(storage: ObjectStorage) -> None:
    place = written(storage.address, 5, 10, 15, 20)
    place.keep_newest(20, keep=2)
    assert kinds(storage) == {"owners": 1, "manifests": 2, "objects": 2}
    manifests = [name for name in storage.names() if name.endswith(".json")]
    assert manifests == ["step-0000000015.json", "step-0000000020.json"]
    for name in manifests:
        assert json.loads(storage.read(name))["object"].startswith(name.removesuffix(".json"))


def _interrupted(method: str, of: str) -> Any:
    whole = getattr(ObjectStorage, method)

    def call(self: ObjectStorage, *args: Any) -> Any:
        name = args[-1] if method == "upload" else args[0]
        if name.startswith("step-0000000010") and name.endswith(of):
            if method == "upload":
                whole(self, *args)  # the object is there, and no manifest
            raise Interrupted
        return whole(self, *args)

    return call


@pytest.mark.parametrize(("method", "of"), [("upload", ".npz"), ("write", ".json")])
def test_what_a_killed_writer_leaves_is_never_read(
    storage: ObjectStorage, monkeypatch: Any, method: str, of: str
) -> None:
    place = written(storage.address, 5)
    with monkeypatch.context() as patch:
        patch.setattr(ObjectStorage, method, _interrupted(method, of))
        with pytest.raises(Interrupted):
            place.write(10, [np.zeros(3)], {})
    assert kinds(storage) == {"owners": 1, "manifests": 1, "objects": 2}
    assert place.find() == ["step-0000000005.json"]
    place.release()
    written(storage.address).release()
    assert kinds(storage) == {"owners": 0, "manifests": 1, "objects": 1}, "the next run removes it"


@pytest.mark.parametrize("damage", ["cut", "another run", "missing", "checksum", "manifest"])
def test_a_damaged_one_is_named(storage: ObjectStorage, damage: str) -> None:
    """And the one before it taken: test_damaged_files.py."""
    place = written(storage.address, 5, 10)
    manifest = json.loads(storage.read("step-0000000010.json"))
    content = storage.read(manifest["object"])
    if damage == "cut":
        storage.write(manifest["object"], content[:-100])
    elif damage == "another run":
        other = written("memory://bucket/other", 10, first=1.0)._storage
        storage.write(manifest["object"], other.read(json.loads(other.read("step-0000000010.json"))["object"]))
    elif damage == "missing":
        storage.remove(manifest["object"])
    elif damage == "checksum":
        storage.write("step-0000000010.json", json.dumps({**manifest, "crc32": manifest["crc32"] ^ 1}).encode())
    else:
        storage.write("step-0000000010.json", b'{"object": "st')
    newest, before = place.find()
    with pytest.raises(DamagedError, match=r"bucket/run/step-0000000010\.json"):
        place.read(newest)
    assert place.read(before)[0]["position"]["steps"] == 5


def test_a_second_run_of_this_machine_is_refused(address: str) -> None:
    first, second = Bucket(address), Bucket(address)
    first.take()
    with pytest.raises(CheckpointError, match="memory://bucket/run: this process"):
        second.take()
    first.require()
    first.release()
    second.take()
    second.release()


def test_a_run_of_another_machine_takes_over_and_the_earlier_one_stops(
    fresh: Any, recipe: Any, storage: ObjectStorage, caplog: Any
) -> None:
    class Elsewhere(keras.callbacks.Callback):  # type: ignore[name-defined, misc]
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if epoch == 1:
                until(lambda: kinds(storage)["manifests"] == 1, "the first save")
                about = json.loads(files.this_process(token="theirs"))
                about |= {"kernel": "another", "host": "other", "pid": 1}
                assert storage.create(".owner-000002", json.dumps(about).encode())

    with pytest.raises(CheckpointError, match=r"taken it over: process .* on other"):
        fresh.fit(recipe, epochs=4, verbose=0, callbacks=[mk.train.Checkpoints(storage.address), Elsewhere()])
    assert kinds(storage) == {"owners": 1, "manifests": 1, "objects": 1}, "nothing of this run after that"
    with caplog.at_level(logging.WARNING, "mirrorkit"):
        fresh.fit(recipe, epochs=2, verbose=0, callbacks=[mk.train.Checkpoints(storage.address)])
    assert "taken over from process" in caplog.text
    assert kinds(storage) == {"owners": 0, "manifests": 2, "objects": 2}


def test_of_two_runs_that_start_at_once_one_has_it(address: str, monkeypatch: Any) -> None:
    first, second = Bucket(address), Bucket(address)
    monkeypatch.setattr(place, "is_running", lambda process: False)  # as if on two machines
    created = ObjectStorage.create

    def create(self: ObjectStorage, name: str, content: bytes) -> bool:
        monkeypatch.setattr(ObjectStorage, "create", created)
        second.take()  # between what the first one saw and its own
        return created(self, name, content)

    monkeypatch.setattr(ObjectStorage, "create", create)
    first.take()
    first.require()
    with pytest.raises(CheckpointError, match="taken it over"):
        second.require()
