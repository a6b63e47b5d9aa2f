"""The file of a checkpoint: exact values of every dtype, whole or not there; damage: test_damaged_files.py."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from checkpoint_helpers import names, saved_at

from mirrorkit.errors import CheckpointError
from mirrorkit.train.checkpoints import file as checkpoint_file
from mirrorkit.train.checkpoints.folder import Folder
from mirrorkit.train.checkpoints.position import Position

RNG = np.random.default_rng(0)
VALUES = [
    np.array([[1.5, -0.0], [np.nan, np.inf]], "float32"),
    np.array(3, "int64"),
    np.array([True, False]),
    np.zeros((0, 4), "float32"),
    RNG.normal(size=(3, 5)),
    RNG.normal(size=7).astype("float16"),
    RNG.normal(size=(2, 3)).astype(ml_dtypes.bfloat16),
    np.array(0.1, ml_dtypes.bfloat16),
    np.array([2**32 - 1, 7], "uint32"),
]
ABOUT = {
    "variables": [{"path": f"v{i}", "shape": list(v.shape), "dtype": v.dtype.name} for i, v in enumerate(VALUES)],
    "position": Position(epoch=3, batch=1, totals=[0.1, 1e-300], steps=12).as_json(),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = checkpoint_file.path_of(tmp_path, 12)
    checkpoint_file.write(path, VALUES, ABOUT)
    return path


@pytest.fixture
def place(path: Path) -> Iterator[Folder]:
    place = Folder(path.parent)
    place.take()
    yield place
    place.release()


def same(one: list[np.ndarray], other: list[np.ndarray]) -> bool:
    return [(v.dtype, v.shape, v.tobytes()) for v in one] == [(v.dtype, v.shape, v.tobytes()) for v in other]


def test_values_of_every_dtype_come_back_bit_for_bit(path: Path) -> None:
    about, values = checkpoint_file.read(path)
    assert same(values, VALUES)
    assert about == {"format": 2, **ABOUT}
    assert names(path.parent) == saved_at(12)


def test_numpy_alone_reads_it(path: Path) -> None:
    with np.load(path, allow_pickle=False) as file:
        assert json.loads(file["about"].tobytes())["position"]["epoch"] == 3
        np.testing.assert_array_equal(file["0"], VALUES[0])


def test_a_size_in_the_zip_directory_that_is_wrong_too_hides_no_changed_value(path: Path) -> None:
    """zipfile compares the checksum of an entry where it ends, as the directory says."""
    value = np.arange(10_000, dtype="int64")
    variables = [{"path": "v", "shape": [10_000], "dtype": "int64"}]
    path.unlink()
    checkpoint_file.write(path, [value], {**ABOUT, "variables": variables})
    whole = bytearray(path.read_bytes())
    at = whole.rindex(b"0.npy") - 46  # where its part of the directory begins
    assert whole[at : at + 4] == b"PK\x01\x02"
    for size in (20, 24):  # as it is stored, and unpacked
        whole[at + size] += 1
    whole[whole.index(value.tobytes())] ^= 1
    path.write_bytes(whole)
    with pytest.raises(checkpoint_file.DamagedError, match="CRC-32"):
        checkpoint_file.read(path)


def test_an_array_of_objects_is_damaged(path: Path) -> None:
    with path.open("wb") as file:
        np.savez(file, about=np.array([{}], dtype=object))
    with pytest.raises(checkpoint_file.DamagedError, match=path.name):
        checkpoint_file.read(path)


def test_a_file_of_another_step_than_its_name_says_is_damaged(path: Path) -> None:
    other = checkpoint_file.path_of(path.parent, 20)
    other.write_bytes(path.read_bytes())
    with pytest.raises(checkpoint_file.DamagedError, match=r"20\.npz .*after 12 steps"):
        checkpoint_file.read(other)


def test_a_newer_format_is_not_damage(path: Path) -> None:
    about = np.frombuffer(json.dumps({"format": 3}).encode(), np.uint8)
    with path.open("wb") as file:
        np.savez_compressed(file, about=about, values=np.zeros(10_000))
    with pytest.raises(CheckpointError, match=r"format 3.*up to 2") as error:
        checkpoint_file.read(path)
    assert not isinstance(error.value, checkpoint_file.DamagedError)


@pytest.mark.parametrize("function", ["fsync", "replace"])
def test_a_failed_write_leaves_the_old_one_and_nothing_else(
    function: str, path: Path, place: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = path.read_bytes()

    def full(*args: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, function, full)
    for steps in (12, 13):
        with pytest.raises(OSError, match="No space"):
            place.write(steps, VALUES, ABOUT)
    assert names(path.parent) == [".owner", *saved_at(12)]
    assert path.read_bytes() == whole


def test_it_is_on_the_disk_before_it_has_its_name(path: Path, place: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[Any] = []
    fsync, replace = os.fsync, os.replace

    def logged_fsync(descriptor: int) -> None:
        target = os.readlink(f"/proc/self/fd/{descriptor}")
        events.append(("fsync", Path(target).name, os.fstat(descriptor).st_size if target.endswith(".tmp") else None))
        fsync(descriptor)

    def logged_replace(source: Path, target: Path) -> None:
        events.append(("replace", Path(source).name, Path(target).name))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", logged_fsync)
    monkeypatch.setattr(os, "replace", logged_replace)
    new = checkpoint_file.path_of(path.parent, 13)
    place.write(13, VALUES, ABOUT)
    unfinished = events[0][1]
    assert unfinished.startswith(f"{new.name}.")
    assert events == [
        ("fsync", unfinished, new.stat().st_size),
        ("replace", unfinished, new.name),
        ("fsync", path.parent.name, None),
    ]


def test_find_takes_the_newest_first_and_nothing_else(tmp_path: Path) -> None:
    for name in (*saved_at(9, 10, 12345678901), "step-7.npz", "notes.npz", "step-0000000011.npz.tmp", "a.tmp"):
        (tmp_path / name).touch()
    place = Folder(tmp_path)
    assert place.find() == saved_at(12345678901, 10, 9)
    assert Folder(tmp_path / "nowhere").find() == []
    place.take()
    place.release()
    assert names(tmp_path) == sorted([*saved_at(9, 10, 12345678901), "a.tmp", "notes.npz", "step-7.npz"])


def test_keep_newest_never_removes_what_was_just_written(tmp_path: Path) -> None:
    def leave(*steps: int, keep: int, just: int) -> list[str]:
        for step in steps:
            (tmp_path / saved_at(step)[0]).touch()
        Folder(tmp_path).keep_newest(just, keep)
        return names(tmp_path)

    assert leave(1, 2, 3, 4, keep=3, just=4) == saved_at(2, 3, 4)
    # 9 could not be read when the run went on from 4: it neither counts nor is it touched
    assert leave(5, 9, keep=1, just=5) == saved_at(5, 9)
