"""Disks and stores that fail beside a run that saves: what is whole is found, and errors say what failed."""

from __future__ import annotations

import errno
import os
import threading
import unittest.mock
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_helpers import names, saved_at, spoil
from training_helpers import Interrupted

import mirrorkit as mk
from mirrorkit import object_storage
from mirrorkit._keras import keras
from mirrorkit.errors import CheckpointError, FileError
from mirrorkit.train.checkpoints import file as checkpoint_file, restore as restoring
from mirrorkit.train.checkpoints.bucket import Bucket
from mirrorkit.train.checkpoints.folder import Folder

ADDRESS = "memory://bucket/run"


@pytest.fixture
def system(bucket: Any, monkeypatch: Any) -> Any:
    """The class of a store in memory; what fails there is not tried for long."""
    monkeypatch.setattr(object_storage, "_WAITS", (0.0,))
    return type(bucket)


def save(loop: Any, data: Any, folder: Any, *, epochs: int = 1, keep: int = 3) -> None:
    loop.fit(data, epochs=epochs, callbacks=[mk.train.Checkpoints(folder, keep=keep)], verbose=0)


@pytest.mark.parametrize("where", ["folder", "bucket"])
def test_a_restore_beside_a_run_that_keeps_one(
    where: str, fresh: Any, recipe: Any, system: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    folder = tmp_path if where == "folder" else ADDRESS
    place = restoring.place_of(restoring.folder_of(folder))
    seen = []
    for epochs in (1, 2, 3):
        save(fresh, recipe, folder, epochs=epochs, keep=1)
        seen.append(place.find())
    looks, find = iter(seen[:2]), type(place).find
    monkeypatch.setattr(type(place), "find", lambda self: next(looks, None) or find(self))
    assert fresh.restore(folder).steps == 15, "the first two were removed between the look and the reading"
    if where == "folder":
        (tmp_path / saved_at(15)[0]).write_bytes(b"")
        with pytest.raises(CheckpointError, match=r"No checkpoint .*step-0000000015\.npz cannot be read: .*move"):
            fresh.restore(folder)


def test_one_that_is_damaged_is_not_read_for_ever(fresh: Any, recipe: Any, tmp_path: Path, monkeypatch: Any) -> None:
    save(fresh, recipe, tmp_path)
    numbers = iter(range(10, 10**6))

    monkeypatch.setattr(Folder, "find", lambda self: saved_at(next(numbers)))
    with pytest.raises(CheckpointError, match="No checkpoint"):
        fresh.restore(tmp_path)


def test_a_network_that_fails_after_the_listing(fresh: Any, recipe: Any, system: Any, monkeypatch: Any) -> None:
    save(fresh, recipe, ADDRESS)

    def fails(*args: Any, **options: Any) -> None:
        raise ConnectionError("the network is down")

    for call in ("cat_file", "get_file"):
        with monkeypatch.context() as patch:
            patch.setattr(system, call, fails)
            with pytest.raises(FileError, match=r"step-0000000005\.json may be whole, .*ConnectionError: the network"):
                fresh.restore(ADDRESS)
    assert fresh.restore(ADDRESS).steps == 5


def test_a_disk_that_fails_after_the_listing(fresh: Any, recipe: Any, tmp_path: Path, monkeypatch: Any) -> None:
    save(fresh, recipe, tmp_path, epochs=2)
    for code in (errno.EIO, errno.ESTALE, errno.ETIMEDOUT):
        error = OSError(code, "the server is away")
        monkeypatch.setattr(checkpoint_file, "open_regular", unittest.mock.Mock(side_effect=error))
        with pytest.raises(FileError, match=r"step-0000000010\.npz may be whole, but cannot be read: .*away"):
            fresh.restore(tmp_path)  # and not an older one


@pytest.mark.parametrize("where", ["folder", "bucket"])
def test_checkpoints_that_may_be_written_and_not_removed(
    where: str, fresh: Any, recipe: Any, system: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    def denied(*args: Any, **options: Any) -> None:
        raise PermissionError("Access Denied")

    if where == "folder":
        monkeypatch.setattr(Path, "unlink", lambda path, **_: denied() if path.suffix == ".npz" else None)
    else:
        monkeypatch.setattr(system, "rm_file", denied)
    folder = tmp_path if where == "folder" else ADDRESS
    with pytest.raises(FileError, match=r"step-0000000005\.\w+ is .* cannot be removed; allow .*: Access Denied"):
        save(fresh, recipe, folder, epochs=3, keep=1)
    assert fresh.restore(folder).steps == 10, "which was written"
    if where == "folder":
        assert {*saved_at(5, 10)} <= {*names(tmp_path)}
    else:
        with pytest.raises(FileError, match=r"owner-\d+ is .* cannot be removed; .*: Access Denied"):
            save(fresh, recipe, folder, epochs=3)


# What is asked of a store, and the call that does not end; `fit` is here since its last save is waited for.
SILENT: dict[str, tuple[Callable[[Any, Any], object], str]] = {
    "take a folder": (lambda loop, data: Bucket(ADDRESS).take(), "ls"),
    "restore: look": (lambda loop, data: loop.restore(ADDRESS), "ls"),
    "restore: read": (lambda loop, data: loop.restore(ADDRESS), "cat_file"),
    "restore: download": (lambda loop, data: loop.restore(ADDRESS), "get_file"),
    "export": (lambda loop, data: mk.train.export(loop.step.model, f"{ADDRESS}.keras"), "put_file"),
    "fit": (lambda loop, data: save(loop, data, ADDRESS, epochs=2), "put_file"),
}


@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=[pytest.mark.slow] * (c not in ("restore: read", "export", "fit"))) for c in SILENT]
)
def test_a_store_that_does_not_answer_or_never_ends(
    case: str, fresh: Any, recipe: Any, system: Any, monkeypatch: Any
) -> None:
    act, call = SILENT[case]
    save(fresh, recipe, ADDRESS)
    answer = threading.Event()
    monkeypatch.setattr(object_storage, "_SILENCE", 1.0)
    monkeypatch.setattr(object_storage, "_SLOWEST", 2**30)
    monkeypatch.setattr(system, call, lambda *args, **options: answer.wait(60))
    try:
        with pytest.raises(FileError, match=r"The store of memory://bucket\S* has not answered for 1\S* s"):
            act(fresh, recipe)
    finally:
        answer.set()


# --- folders and disks that cannot be written to: known in time, and the checkpoints before stay whole


@pytest.fixture
def not_root() -> Iterator[None]:
    """Root may write everywhere."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    yield
    os.seteuid(user)


class NoStep(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        pytest.fail("trained before it was known that nothing can be saved")


@pytest.mark.parametrize("kind", ["inside a read-only one", "below a file"])
def test_a_folder_that_cannot_be_written_is_an_error_before_the_training(
    kind: str, fresh: Any, recipe: Any, tmp_path: Path, request: Any
) -> None:
    folder = tmp_path / "runs"
    if "read" in kind:
        folder.mkdir()
        folder.chmod(0o555)
        tmp_path.chmod(0o755)
        request.getfixturevalue("not_root")
    else:
        folder.write_text("a file")
    target = folder / "first"
    with pytest.raises(FileError, match=f"cannot be written to {target}: "):
        fresh.fit(recipe, callbacks=[mk.train.Checkpoints(target), NoStep()], verbose=0)


def test_a_full_disk_ends_the_training_and_leaves_the_old_ones_whole(
    fresh: Any, recipe: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    savez, made = np.savez, []

    def full(file: Any, **entries: Any) -> None:
        made.append(file.name)
        if len(made) >= 3:
            file.write(b"x" * 100)
            raise OSError(errno.ENOSPC, "No space left on device")
        savez(file, **entries)

    monkeypatch.setattr(np, "savez", full)
    steps: list[int] = []

    class Watch(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            steps.append(fresh.position.steps)

    with pytest.raises(FileError, match=rf"{tmp_path}/step-0000000006.npz .*No space.*0\.0 MiB"):
        fresh.fit(recipe, epochs=9, callbacks=[mk.train.Checkpoints(tmp_path, every=2), Watch()], verbose=0)
    assert 6 <= max(steps) <= 8  # known at the latest when the next one is due
    assert names(tmp_path) == saved_at(2, 4)
    monkeypatch.undo()
    spoil(fresh)
    assert fresh.restore(tmp_path).steps == 4


def test_an_error_in_the_training_is_not_hidden_by_one_in_the_writing(
    fresh: Any, recipe: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, failed = threading.Event(), threading.Event()

    def gone(*args: Any) -> None:
        started.set()
        failed.wait(20)
        raise OSError("the disk is gone")

    class Fail(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if epoch == 1:
                assert started.wait(20)
                threading.Timer(0.2, failed.set).start()
                raise Interrupted

    monkeypatch.setattr(checkpoint_file, "write", gone)
    with pytest.raises(Interrupted), pytest.warns(UserWarning, match="the disk is gone"):
        fresh.fit(recipe, epochs=2, callbacks=[mk.train.Checkpoints(tmp_path), Fail()], verbose=0)
