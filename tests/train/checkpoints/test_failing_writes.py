"""Folders and disks that cannot be written to: known in time, and the checkpoints before stay whole."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_helpers import names, saved_at, spoil
from training_helpers import Interrupted

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.errors import FileError
from mirrorkit.train.checkpoints import file as checkpoint_file

pytestmark = pytest.mark.filterwarnings("ignore:A global batch of")


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
