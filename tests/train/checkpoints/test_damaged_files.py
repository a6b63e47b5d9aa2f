"""A damaged newest checkpoint is named and the one before it used; where none is whole, no variable is written."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from checkpoint_helpers import bits, saved_at, spoil, write_as_other_version

import mirrorkit as mk
from mirrorkit.errors import CheckpointError
from mirrorkit.train.checkpoints import file as checkpoint_file

pytestmark = pytest.mark.filterwarnings("ignore:A global batch of")


@pytest.fixture(scope="module")
def _two_epochs(_line_and_its_first_values: Any, numbers: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the checkpoints of two epochs."""
    folder, (loop, _) = tmp_path_factory.mktemp("saved"), _line_and_its_first_values
    loop.position = mk.train.Position()
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
    """Other damage: test_fuzzed_checkpoints.py."""
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


@pytest.mark.parametrize("kind", ["pipe", "link to itself", "device"])
def test_what_is_no_file_is_damage(kind: str, newest: Path, fresh: Any) -> None:
    other = newest.parent / saved_at(99)[0]
    if kind == "pipe":
        os.mkfifo(other)
    else:
        other.symlink_to({"link to itself": other, "device": "/dev/zero"}[kind])
    with pytest.warns(UserWarning, match=f"{other} cannot be read"):
        assert fresh.restore(newest.parent).steps == 10
