"""Files with right checksums and wrong content: refused by name, before a variable is written or memory is taken."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_helpers import bits, forge, header, saved_at, spoil

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
def saved(_two_epochs: Path, tmp_path: Path) -> Any:
    """A copy of these checkpoints, and what the newest holds."""
    shutil.copytree(_two_epochs, tmp_path, dirs_exist_ok=True)
    newest = tmp_path / saved_at(10)[0]
    about, values = checkpoint_file.read(newest)
    return newest, about, {str(i): value for i, value in enumerate(values)}


def _position(**changes: Any) -> Any:
    def change(about: Any) -> Any:
        return {**about, "position": {**about["position"], **changes}}

    return change


def _without(name: str) -> Any:
    def change(about: Any) -> Any:
        position = {key: value for key, value in about["position"].items() if key != name}
        return {**about, "position": position}

    return change


ABOUT = {
    "a list": lambda about: [1, 2],
    "brackets": lambda about: b"[" * 100_000,
    "no format": lambda about: {key: value for key, value in about.items() if key != "format"},
    "format of text": lambda about: {**about, "format": "x"},
    "negative format": lambda about: {**about, "format": -1},
    "no variables": lambda about: {**about, "variables": None},
    "a variable of text": lambda about: {**about, "variables": ["a", *about["variables"][1:]]},
    "a negative shape": lambda about: {**about, "variables": [{**v, "shape": [-1]} for v in about["variables"]]},
    "no position": lambda about: {key: value for key, value in about.items() if key != "position"},
    **{f"no {name}": _without(name) for name in ("epoch", "batch", "totals", "steps", "history", "ended")},
    "epoch of text": _position(epoch="x"),
    "no number": _position(batch=None),
    "a negative epoch": _position(epoch=-3),
    "a negative batch": _position(batch=-7),
    "half a batch": _position(batch=1.5),
    "a huge step": _position(steps=10**30),
    "true": _position(epoch=True),
    "totals of text": _position(totals=["a"]),
    "totals that are none": _position(totals=5),
    "history of text": _position(history={"loss": ["a"]}),
    "history of lists": _position(history={"loss": [[1]]}),
    "history that is a list": _position(history=[1, 2]),
    "history of objects": _position(history={"f1": [{"values": [1], "dtype": "O"}]}),
    "history of uneven rows": _position(history={"f1": [{"values": [1, [2]], "dtype": "float32"}]}),
    "a batch size of 0": _position(global_batch_size=0),
    "an order of numbers": _position(order=5),
    "sums of numbers": _position(sums=[5]),
}


@pytest.mark.parametrize("kind", ABOUT)
def test_a_description_that_cannot_be_is_damage(kind: str, saved: Any, fresh: Any) -> None:
    newest, about, values = saved
    forge(newest, ABOUT[kind](about), values)
    with pytest.warns(UserWarning, match=f"Damaged checkpoint, the one before it is used: {newest} cannot be read"):
        assert fresh.restore(newest.parent).steps == 5
    (newest.parent / saved_at(5)[0]).unlink()
    spoil(fresh)
    before = bits(fresh)
    with pytest.raises(CheckpointError, match="is whole"):
        fresh.restore(newest.parent)
    assert bits(fresh) == before


def _last(change: Any) -> Any:
    """Change the last array: whatever is written before it is seen to be wrong would be lost."""

    def changed(values: dict[str, Any]) -> dict[str, Any]:
        last = str(len(values) - 1)
        return {**values, last: change(values[last])}

    return changed


ARRAYS = {
    "another shape": _last(lambda value: np.zeros((3, 3), value.dtype)),
    "a shape that stretches": lambda values: {key: np.zeros((1,) * v.ndim, v.dtype) for key, v in values.items()},
    "another dtype": _last(lambda value: value.astype("float16")),
    "other bits": _last(lambda value: value.view("u4")),
    "objects": _last(lambda value: header("|O", *value.shape)),
    "no header": _last(lambda value: b"hello"),
    "80 GB that are not there": _last(lambda value: header("<f4", 2 * 10**10) + bytes(100)),
    "too few values": _last(lambda value: header("<f4", *value.shape)),
    "too many values": _last(lambda value: header("<f4", *value.shape) + value.tobytes() + bytes(8)),
    "one missing": lambda values: {key: value for key, value in values.items() if key != "0"},
    "one more": lambda values: {**values, "x": np.zeros(3)},
}


@pytest.mark.parametrize("kind", ARRAYS)
def test_arrays_unlike_their_description_are_damage(kind: str, saved: Any, fresh: Any) -> None:
    newest, about, values = saved
    forge(newest, about, ARRAYS[kind](values))
    (newest.parent / saved_at(5)[0]).unlink()
    spoil(fresh)
    before = bits(fresh)
    with pytest.raises(CheckpointError, match=rf"No checkpoint in .* is whole: {newest} cannot be read: \w+Error"):
        fresh.restore(newest.parent)
    assert bits(fresh) == before


def test_a_description_of_a_newer_version_is_not_damage(saved: Any, fresh: Any) -> None:
    newest, about, values = saved
    forge(newest, _position(colour=1)(about), values)
    with pytest.raises(CheckpointError, match=rf"{newest}: .* holds 'colour'.*Update mirrorkit"):
        fresh.restore(newest.parent)


@pytest.mark.parametrize("kind", ["pipe", "link to nowhere", "link to itself", "device"])
def test_what_is_no_file_is_damage(kind: str, saved: Any, fresh: Any, recipe: Any) -> None:
    newest, _, _ = saved
    other = newest.parent / saved_at(99)[0]
    if kind == "pipe":
        os.mkfifo(other)
    else:
        other.symlink_to({"link to nowhere": "nowhere", "link to itself": other, "device": "/dev/zero"}[kind])
    with pytest.warns(UserWarning, match=f"{other} cannot be read"):
        report = fresh.fit(recipe, epochs=3, callbacks=[mk.train.Checkpoints(newest.parent)], verbose=0)
    assert len(report.epochs) == 1
    assert fresh.position.steps == 15
