"""Whose a folder is: two runs never mix their checkpoints, and a killed one leaves no lock behind."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_helpers import names, saved_at
from training_helpers import At, Interrupted

import mirrorkit as mk
from mirrorkit import files
from mirrorkit.errors import CheckpointError, FileError
from mirrorkit.train.checkpoints.folder import Folder

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc tells who lives")


@pytest.fixture
def other() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


def owned_by(folder: Path, **changes: Any) -> Path:
    """Write the file of another run into a folder."""
    about = {**json.loads(files.this_process(token="theirs")), **changes}
    folder.mkdir(exist_ok=True)
    (folder / ".owner").write_text(json.dumps(about))
    return folder / ".owner"


@pytest.mark.parametrize("name", [".owner", "step-0000000004.npz"])
def test_a_folder_of_the_name_of_a_file_is_named(name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(FileError, match=f"{tmp_path / name} is a folder"):
        Folder(tmp_path).take()


@linux
def test_a_living_run_is_named_and_nothing_of_it_touched(other: Any, fresh: Any, recipe: Any, tmp_path: Path) -> None:
    owned_by(tmp_path, pid=other.pid, started=files._started(other.pid))
    for unfinished in ("step-0000000003.npz", ".owner"):
        (tmp_path / f"{unfinished}.0123456789abcdef.tmp").write_bytes(b"half")
    before = names(tmp_path)
    with pytest.raises(CheckpointError, match=rf"{tmp_path}: process {other.pid} on .*started"):
        fresh.fit(recipe, callbacks=[mk.train.Checkpoints(tmp_path)], verbose=0)
    assert names(tmp_path) == before
    assert fresh.position.steps == 0
    other.kill()  # and not waited for: a process that has ended, of which the parent has not asked
    os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)
    Folder(tmp_path).take()
    assert names(tmp_path) == [".owner"]


@linux
@pytest.mark.parametrize("kind", ["another boot", "same number, started before", "exec", "damaged"])
def test_what_a_killed_run_left_is_no_lock(kind: str, tmp_path: Path) -> None:
    changes: dict[str, Any] = {
        "another boot": {"kernel": "another pid:[1]", "pid": 1},
        "same number, started before": {"started": 5},
    }.get(kind, {})
    left = owned_by(tmp_path, **changes)
    if kind == "damaged":
        left.write_text("[5")
    place = Folder(tmp_path)
    place.take()
    place.require()
    place.release()
    assert names(tmp_path) == []


def test_the_earlier_run_stops_at_its_next_save(fresh: Any, recipe: Any, tmp_path: Path) -> None:
    saver = mk.train.Checkpoints(tmp_path, every=2)

    def take_over() -> None:
        while names(tmp_path) != [".owner", *saved_at(2)]:  # another thread writes it
            time.sleep(0.01)
        owned_by(tmp_path, host="far", pid=7)

    with pytest.raises(CheckpointError, match="taken it over: process 7 on far"):
        fresh.fit(recipe, epochs=9, callbacks=[saver, At("on_train_batch_end", 3, take_over)], verbose=0)
    assert fresh.position.steps < 10
    assert names(tmp_path) == [".owner", *saved_at(2)]  # the other's file, and no checkpoint after it came


def test_a_run_whose_file_or_folder_is_gone_stops_too(fresh: Any, recipe: Any, tmp_path: Path) -> None:
    for name, act in (
        ("file", lambda: (tmp_path / "file" / ".owner").unlink()),
        ("folder", lambda: shutil.rmtree(tmp_path / "folder")),
    ):
        saver = mk.train.Checkpoints(tmp_path / name, every=2)
        with pytest.raises(CheckpointError, match=r"its \.owner is gone"):
            fresh.fit(recipe, epochs=9, callbacks=[saver, At("on_train_batch_end", 3, act)], verbose=0)


def test_a_later_run_may_start_while_the_earlier_one_writes(
    fresh: Any, recipe: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = os.replace

    def start_another(source: Any, target: Any) -> None:
        if str(target).endswith(".npz"):
            os.unlink(source)  # as every start does with unfinished files
            owned_by(tmp_path, host="far", pid=7)
        replace(source, target)

    monkeypatch.setattr(os, "replace", start_another)
    with pytest.raises(CheckpointError, match="taken it over: process 7 on far"):
        fresh.fit(recipe, epochs=9, callbacks=[mk.train.Checkpoints(tmp_path, every=2)], verbose=0)


@linux
def test_a_fit_within_a_fit_needs_a_folder_of_its_own(fresh: Any, recipe: Any, tmp_path: Path) -> None:
    other, found = mk.train.Loop(fresh.strategy, fresh.step), []
    saver = mk.train.Checkpoints(tmp_path, every=2)

    def train() -> None:
        for inner in (mk.train.Checkpoints(tmp_path), saver):
            with pytest.raises(CheckpointError) as error:
                other.fit(recipe, callbacks=[inner], verbose=0)
            found.append(str(error.value))

    fresh.fit(recipe, epochs=2, callbacks=[saver, At("on_train_batch_end", 2, train)], verbose=0)
    assert f"Another run writes checkpoints to {tmp_path}: this process" in found[0]
    assert "belong to a fit that is running" in found[1]
    assert names(tmp_path) == saved_at(6, 8, 10)


def test_the_folder_is_free_after_every_end(fresh: Any, recipe: Any, tmp_path: Path) -> None:
    def stop() -> None:
        assert ".owner" in names(tmp_path)
        raise error

    for error in (Interrupted(), KeyboardInterrupt()):
        callbacks = [mk.train.Checkpoints(tmp_path, every=1), At("on_train_batch_end", 3, stop)]
        with pytest.raises(type(error)):
            fresh.fit(recipe, epochs=2, callbacks=callbacks, verbose=0)
        assert ".owner" not in names(tmp_path)


# --- planted files


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_planted_owner_is_replaced_and_never_followed(kind: str, tmp_path: Path) -> None:
    victim, folder = tmp_path / "victim", tmp_path / "run"
    victim.write_text("precious")
    folder.mkdir()
    if kind == "pipe":
        os.mkfifo(folder / ".owner")
    else:
        (folder / ".owner").symlink_to(victim)
    for name in (".writable", *(f"{name}.tmp" for name in saved_at(5, 10))):
        (folder / name).symlink_to(victim)
    place = Folder(folder)
    place.take()
    for steps in (5, 10):
        place.write(steps, [np.zeros(3)], {"variables": [], "position": {}})
    place.release()
    assert victim.read_text() == "precious"
    assert not any(path.is_symlink() for path in folder.glob("step*"))
    assert names(folder) == [".writable", *saved_at(5, 10)]


def test_a_forged_file_writes_no_lines_of_its_own(fresh: Any, recipe: Any, tmp_path: Path, caplog: Any) -> None:
    forged = "node\n2026-11-28 ERROR root: all disks are lost\r\x1b[2J"
    owned_by(tmp_path, kernel="another", host=forged, since=forged, pid=forged)
    saving = mk.train.Checkpoints(tmp_path)
    saving._place.take()
    assert "taken over from process node\\n2026-11-28 ERROR" in caplog.text
    (message,) = [text for text in caplog.messages if "taken over" in text]
    assert message.isprintable()
    owned_by(tmp_path, host=forged)
    with pytest.raises(CheckpointError, match="taken it over") as caught:
        saving._place.require()
    assert str(caught.value).isprintable()
