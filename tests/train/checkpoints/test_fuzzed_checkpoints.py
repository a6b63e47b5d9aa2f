"""1,000 ways to damage a checkpoint: a named error, or the true values."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from mirrorkit.errors import CheckpointError
from mirrorkit.train.checkpoints import file as checkpoint_file
from mirrorkit.train.checkpoints.position import Position

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
