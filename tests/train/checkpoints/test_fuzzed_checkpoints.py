"""3,000 mutations of a checkpoint: a named error or the true values, little memory, and an end."""

from __future__ import annotations

import json
import random
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_helpers import forge, header

from mirrorkit.errors import CheckpointError
from mirrorkit.train.checkpoints import file as checkpoint_file
from mirrorkit.train.checkpoints.position import Position

VALUES = [np.arange(6, dtype="float32").reshape(2, 3), np.array(3, "int64"), np.zeros((0, 4), "float32")]
HISTORY = {"loss": [0.5], "f1": [np.zeros(3, "float32")]}
POSITION = Position(1, 2, [0.5, 1.5], 7, HISTORY, 0, 12, 2, 1, 60, "seed 1", ["a"])
WANTED = [{"path": f"v{i}", "shape": list(v.shape), "dtype": v.dtype.name} for i, v in enumerate(VALUES)]
ABOUT = {"format": 1, "variables": WANTED, "position": POSITION.as_json()}
ODD = [*(None, True, -1, 0, 1, 2, 2**31, 2**63, 10**40, 1.5, 1e400), *("", "x", "float32", "int64", "O")]
ODD += [[], {}, [[]], [1], {"a": 1}]


class Late(BaseException):
    """No error that a reader could catch."""


def of_bytes(rng: random.Random, whole: bytes) -> bytes:
    """Change a few bytes, cut, repeat or move a part, or add noise."""
    changed = bytearray(whole)
    first, end = sorted(rng.randrange(len(whole)) for _ in range(2))
    match rng.randrange(7):
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
    return bytes(changed)


def of_json(rng: random.Random, value: Any) -> Any:
    """Replace, remove or add something somewhere."""
    if rng.random() < 0.3 or not isinstance(value, (list, dict)) or not value:
        return rng.choice(ODD)
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    key, kind = rng.choice(keys), rng.random()
    changed = value.copy()
    if kind < 0.2:
        del changed[key]
    elif kind < 0.3 and isinstance(changed, dict):
        changed[rng.choice(["x", *keys])] = rng.choice(ODD)
    elif kind < 0.3:
        changed.append(rng.choice(ODD))
    else:
        changed[key] = of_json(rng, value[key])
    return changed


def of_text(rng: random.Random, text: bytes) -> bytes:
    """Nest, repeat or spoil JSON as text."""
    place, part = rng.randrange(len(text)), rng.choice([b"[", b"{", b"[],", b"9", b"1e", b"\\u", b"\xff", b",", b"NaN"])
    return text[:place] + part * rng.choice([1, 3, 100, 50_000]) + text[place + rng.randrange(3) :]


def of_arrays(rng: random.Random) -> dict[str, Any]:
    """Exchange an array for another, for a header alone, or for bytes."""
    arrays: dict[str, Any] = {str(i): value for i, value in enumerate(VALUES)}
    name = rng.choice([*arrays, "3", "about", "x"])
    shape = [rng.choice([0, 1, 2, 3, 4, 10**6, 2**40, 2**62]) for _ in range(rng.randrange(4))]
    arrays[name] = rng.choice(
        [
            np.zeros([min(size, 5) for size in shape], rng.choice(["float32", "int64", "u1", "c16", "U3"])),
            header(rng.choice(["<f4", ">f4", "|O", "<i8", "|V4", "<U9999", "|S0"]), *shape) + bytes(rng.randrange(99)),
            of_bytes(rng, header("<f4", 2, 3) + bytes(24)),
        ]
    )
    if rng.random() < 0.3:
        del arrays[rng.choice(list(arrays))]
    return arrays


def write(rng: random.Random, path: Path, whole: bytes) -> None:
    """Write one mutation; half of them have right checksums."""
    arrays = {str(i): value for i, value in enumerate(VALUES)}
    match rng.randrange(6):
        case 0 | 1 | 2:
            path.write_bytes(of_bytes(rng, whole))
        case 3:
            forge(path, of_json(rng, ABOUT), arrays)
        case 4:
            forge(path, of_text(rng, json.dumps(ABOUT).encode()), arrays)
        case 5:
            forge(path, ABOUT, of_arrays(rng))


def peak() -> int:
    """The most memory that this process had since `clear_refs`, in bytes."""
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) * 1024


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")  # zipfile's, of a name that is there twice
def test_mutations(tmp_path: Path) -> None:
    path = checkpoint_file.path_of(tmp_path, 7)
    checkpoint_file.write(path, VALUES, ABOUT)
    whole, rng, found = path.read_bytes(), random.Random(0), Counter[str]()
    unnamed = 0
    assert checkpoint_file.read(path, WANTED)[0] == ABOUT

    def late(*args: Any) -> None:
        raise Late

    before = signal.signal(signal.SIGALRM, late)
    try:
        for _ in range(3_000):
            write(rng, path, whole)
            Path("/proc/self/clear_refs").write_text("5")
            at_first = peak()
            signal.alarm(5)  # one that hangs
            try:
                about, values = checkpoint_file.read(path, WANTED)
            except CheckpointError as error:
                found[type(error).__name__] += 1
                unnamed += str(path) not in str(error)
            else:
                assert [(v.dtype, v.shape) for v in values] == [(v.dtype, v.shape) for v in VALUES]
                Position.from_json(about["position"])
                found["read"] += 1
            signal.alarm(0)
            assert peak() - at_first < 4 * path.stat().st_size + 200e6
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    assert unnamed == 0
    assert found["DamagedError"] > 1500
    assert found["read"] > 30  # what changes nothing that matters, a date in the zip directory, say
