"""Plain functions for the tests of checkpoints."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from training_helpers import At, Interrupted, sequential, set_values, values_of

import mirrorkit as mk
from mirrorkit._keras import keras

L = keras.layers


def net() -> Any:
    """A small net with every kind of layer state: seeds of augmentation and Dropout, statistics of BatchNorm."""
    return sequential(
        *((4, 4, 1), L.Rescaling(1 / 255), L.RandomFlip(), L.Flatten(), L.Dense(6), L.BatchNormalization()),
        *(L.Dropout(0.3), L.Dense(1)),
    )


def break_off(loop: Any, data: Any, *callbacks: Any, at: int, **options: Any) -> None:
    """Train until this step, break off, and spoil every value, so that only what is restored can be right."""
    loop.position = mk.train.Position()  # a loop that served another test has steps behind it
    with pytest.raises(Interrupted):
        loop.fit(data, callbacks=[*callbacks, At("on_train_batch_end", at)], verbose=0, **options)
    spoil(loop)


def check_resumed(loop: Any, data: Any, folder: Path, *, every: int, at: Sequence[int], **options: Any) -> None:
    """Train as a whole, and once more with a break at each of these steps: the same bits, the same history."""
    start = values_of(loop)
    history = loop.fit(data, verbose=0, **options).history
    expected = bits(loop)
    set_values(loop, start)
    for step in at:
        break_off(loop, data, mk.train.Checkpoints(folder, every=every, keep=99), at=step, **options)
    report = loop.fit(data, callbacks=[mk.train.Checkpoints(folder, every=every, keep=99)], verbose=0, **options)
    assert bits(loop) == expected
    assert report.history.keys() == history.keys()
    for name, values in history.items():
        np.testing.assert_array_equal(report.history[name], values)


def spoil(loop: Any) -> None:
    """Overwrite every variable."""
    for variable in loop.step.variables:
        variable.assign(np.full(variable.shape, 7, np.dtype(variable.dtype)))


def bits(loop: Any) -> list[bytes]:
    """The exact values of all variables."""
    return [value.tobytes() for value in values_of(loop)]


def names(folder: Path) -> list[str]:
    """The files of a folder, sorted."""
    return sorted(path.name for path in folder.iterdir())


def saved_at(*steps: int) -> list[str]:
    """The names of checkpoints after these numbers of steps."""
    return [f"step-{n:010d}.npz" for n in steps]


def write_as_other_version(path: Path, about: Any, arrays: dict[str, np.ndarray]) -> None:
    """Write a file as another version of mirrorkit may have written it."""
    np.savez(path, about=np.frombuffer(json.dumps(about).encode(), np.uint8), **arrays)
