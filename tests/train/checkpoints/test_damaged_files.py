"""Damaged checkpoints: a named error, or the true values; the one before is used."""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_helpers import bits, saved_at, spoil, write_as_other_version
from training_helpers import as_new

import mirrorkit as mk
from mirrorkit.errors import CheckpointError
from mirrorkit.train.checkpoints import file as checkpoint_file
from mirrorkit.train.checkpoints.position import Position


@pytest.fixture(scope="module")
def _two_epochs(_line: Any, numbers: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the checkpoints of two epochs."""
    folder, loop = tmp_path_factory.mktemp("saved"), as_new(_line)
    data = mk.data.batches(mk.data.arrays(*numbers), global_batch_size=12)
    loop.fit(data, epochs=2, callbacks=[mk.train.Checkpoints(folder)], verbose=0)
    return folder


@pytest.fixture
def newest(_two_epochs: Path, tmp_path: Path) -> Path:
    """The newest of a copy of these checkpoints."""
    shutil.copytree(_two_epochs, tmp_path, dirs_exist_ok=True)
    return tmp_path / saved_at(10)[0]


def _flipped(content: bytes) -> bytes:
    """Change a bit of the last value, after all others have been read."""
    values = checkpoint_file.np.array([1], "float32").tobytes()
    place = content.rindex(b"PK\x01\x02", 0, content.index(b"PK\x01\x02") + 4) - len(values)
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


def test_the_one_before_is_used_or_nothing_is_written(newest: Path, fresh: Any) -> None:
    """Other damage: test_damaged_files.py."""
    newest.write_bytes(_flipped(newest.read_bytes()))
    with pytest.warns(UserWarning, match=f"{newest} cannot be read"):
        assert fresh.restore(newest.parent).steps == 5
    (newest.parent / saved_at(5)[0]).unlink()
    spoil(fresh)
    before = bits(fresh)
    with pytest.raises(CheckpointError, match=rf"No checkpoint .*{newest} cannot be read"):
        fresh.restore(newest.parent)
    assert bits(fresh) == before


def test_a_description_of_a_newer_version_is_not_damage(newest: Path, fresh: Any) -> None:
    about, values = checkpoint_file.read(newest)
    about["position"]["colour"] = 1
    write_as_other_version(newest, about, {str(i): value for i, value in enumerate(values)})
    spoil(fresh)
    before = bits(fresh)
    with pytest.raises(CheckpointError, match=rf"{newest}: .*'colour'"):
        fresh.restore(newest.parent)
    assert bits(fresh) == before


@pytest.mark.parametrize("kind", ["pipe", "folder", "link to itself", "device"])
def test_what_is_no_file_is_damage(kind: str, newest: Path, fresh: Any) -> None:
    other = newest.parent / saved_at(99)[0]
    if kind == "pipe":
        os.mkfifo(other)
    elif kind == "folder":
        other.mkdir()
    else:
        other.symlink_to({"link to itself": other, "device": "/dev/zero"}[kind])
    with pytest.warns(UserWarning, match=f"{other} cannot be read"):
        assert fresh.restore(newest.parent).steps == 10


# --- 1,000 ways to damage a checkpoint: a named error, or the true values


VALUES = [np.arange(6, dtype="float32").reshape(2, 3), np.array(3, "int64"), np.zeros((0, 4), "float32")]
HISTORY = {"loss": [0.5], "f1": [np.zeros(3, "float32")]}
POSITION = Position(1, 2, [0.5, 1.5], 7, HISTORY, 0, 12, 2, 1, 60, "seed 1", ["a"])
WANTED = [{"path": f"v{i}", "shape": list(v.shape), "dtype": v.dtype.name} for i, v in enumerate(VALUES)]
ABOUT = {"format": 1, "variables": WANTED, "position": POSITION.as_json()}


def of_bytes(rng: random.Random, whole: bytes) -> bytes:
    """Change a few bytes, cut, repeat or move a part, or add noise."""
    changed = bytearray(whole)
    first, end = sorted(rng.randrange(len(whole)) for _ in range(2))
    match rng.randrange(8):
        case 0:
            changed[first] ^= 1 << rng.randrange(8)
        case 1:
            for _ in range(rng.randrange(1, 9)):
                changed[rng.randrange(len(whole))] = rng.randrange(256)
        case 2:
            del changed[first:]
        case 3:
            del changed[first:end]
        case 4:
            changed[first:first] = whole[first:end]
        case 5:
            changed[first : first + 8] = rng.choice([b"\xff" * 8, b"\x00" * 8, b"\xff\xff\xff\x7f"])
        case 6:  # the zip directory and what leads to it
            place = len(whole) - 1 - rng.randrange(300)
            changed[place] = rng.randrange(256)
        case 7:
            changed[first:end] = bytes(end - first)
    return bytes(changed)


@pytest.mark.filterwarnings("ignore::UserWarning")  # zipfile's, of a name that is there twice
def test_damage(tmp_path: Path) -> None:
    path = checkpoint_file.path_of(tmp_path, 7)
    checkpoint_file.write(path, VALUES, ABOUT)
    whole, rng, found = path.read_bytes(), random.Random(0), Counter[str]()
    assert checkpoint_file.read(path, WANTED)[0] == ABOUT
    for _ in range(1_000):
        path.write_bytes(of_bytes(rng, whole))
        try:
            about, values = checkpoint_file.read(path, WANTED)
        except CheckpointError as error:
            found[type(error).__name__] += 1
            found["unnamed"] += str(path) not in str(error)
        else:
            assert about == ABOUT
            assert [(v.dtype, v.shape, v.tobytes()) for v in values] == [
                (v.dtype, v.shape, v.tobytes()) for v in VALUES
            ]
            found["read"] += 1
    assert found["DamagedError"] > 800
    assert found["read"] > 10  # what changes nothing that matters, a date in the zip directory, say
