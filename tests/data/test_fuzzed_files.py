"""Readers of files meet thousands of mutations each: what is wrong is an error by name, in little memory and time.

`MIRRORKIT_MUTATIONS=10000` makes more of them.
"""

from __future__ import annotations

import gzip
import json
import os
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from source_files import COLOURS, IMAGES, LABELS, idx_bytes, planes, record_header

from mirrorkit import data
from mirrorkit.data import cifar, mnist
from mirrorkit.data.index_file import read_index
from mirrorkit.data.record_index import RecordIndex
from mirrorkit.data.record_lengths import count_by_reading
from mirrorkit.errors import DataError

pytestmark = pytest.mark.slow

MUTATIONS = int(os.environ.get("MIRRORKIT_MUTATIONS", "2500"))
SECONDS = 5  # in which each is refused or read
MEMORY = 200 << 20  # and four times the file
NUMBERS = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 2**40, 2**63 - 1, 2**64 - 1)
WORDS = ("", "..", "/etc/passwd", "GZIP", "float32", "object", "x", "x/", "y/a", "\0", "9" * 400)
Mutate = Callable[[bytes, np.random.Generator], bytes]
VALUES = (None, True, -1, 0, 1, 2**31, 2**63, 10**30, 1e308, float("nan"), [], {}, [[]], {"a": 1}, *WORDS)


def flipped(content: bytes, rng: np.random.Generator) -> bytes:
    """Change some bytes: bits, numbers of every size, ranges left out, doubled, moved or cut off."""
    changed = bytearray(content)
    for _ in range(int(rng.integers(1, 5))):
        at, end = np.sort(rng.integers(0, len(changed) + 1, 2)) if len(changed) else (0, 0)
        end = min(int(end), int(at) + 64)
        kind = rng.integers(7)
        if kind == 0 and at < len(changed):
            changed[at] ^= 1 << int(rng.integers(8))
        elif kind == 1:
            number, width = NUMBERS[rng.integers(len(NUMBERS))], 2 ** int(rng.integers(4))
            order = ("little", "big")[rng.integers(2)]
            changed[at : at + width] = (number % 256**width).to_bytes(width, order)
        elif kind == 2:
            del changed[at:end]
        elif kind == 3:
            changed[at:at] = changed[at:end]
        elif kind == 4:
            changed[at:at] = rng.bytes(int(rng.integers(1, 20)))
        elif kind == 5:
            del changed[at:]
        elif kind == 6:
            place = int(rng.integers(min(64, len(changed) + 1)))  # a header
            changed[place:place] = changed[at:end]
    return bytes(changed)


def other_values(content: bytes, rng: np.random.Generator) -> bytes:
    """Change the values of a JSON file, or its text."""
    if not rng.integers(4):
        return flipped(content, rng)
    index = json.loads(content)
    for _ in range(int(rng.integers(1, 3))):
        at = index
        while isinstance(at, (dict, list)) and at:
            key = list(at)[rng.integers(len(at))] if isinstance(at, dict) else int(rng.integers(len(at)))
            if not isinstance(at[key], (dict, list)) or not rng.integers(4):
                kind = rng.integers(4)
                if kind == 0:
                    del at[key]
                elif kind == 1 and type(at[key]) is int:
                    at[key] += int(rng.integers(-3, 4))
                else:
                    at[key] = VALUES[rng.integers(len(VALUES))]
                break
            at = at[key]
    text = json.dumps(index).encode()
    return text if rng.integers(20) else text.replace(b"[", b"[" * 5000, 1)


def other_lengths(content: bytes, rng: np.random.Generator) -> bytes:
    """Change a TFRecord file, or give one of its records another length with a right checksum."""
    if rng.integers(2):
        return flipped(content, rng)
    place = 0
    for _ in range(rng.integers(4)):
        place += int.from_bytes(content[place : place + 8], "little") + 16
    length = int.from_bytes(content[place : place + 8], "little")
    other = length + int(rng.integers(1, 10)) if rng.integers(2) else NUMBERS[rng.integers(len(NUMBERS))]
    return content[:place] + record_header(other) + content[place + 12 :]


def packed(mutate: Mutate) -> Mutate:
    """Change a gzip file, or what is in it."""

    def changed(content: bytes, rng: np.random.Generator) -> bytes:
        if rng.integers(2):
            return flipped(content, rng)
        return gzip.compress(mutate(gzip.decompress(content), rng), 1)

    return changed


def overwrite(path: Path, content: bytes) -> None:
    """Write a file that is there, whose blocks stay: on some file systems an emptied one is synced to the disk."""
    with path.open("r+b") as file:
        file.write(content)
        file.truncate()


def memory(which: str) -> int:
    """What the kernel says of this process's memory, in bytes."""
    return int(Path("/proc/self/status").read_text().partition(f"{which}:")[2].split()[0]) << 10


@contextmanager
def within_limits(size: int, *, address_space: bool = True) -> Iterator[None]:
    """Let what takes longer or more memory than it may fail; of memory that is never touched, with `address_space`."""

    def too_long(*_: object) -> None:
        raise TimeoutError(f"it took {SECONDS} s")

    most = 4 * size + MEMORY
    before = signal.signal(signal.SIGALRM, too_long)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM is the most since then
    held = memory("VmHWM")
    signal.alarm(SECONDS)
    try:
        if address_space:
            resource.setrlimit(resource.RLIMIT_AS, (memory("VmSize") + most, limits[1]))
        yield
    finally:
        signal.alarm(0)
        resource.setrlimit(resource.RLIMIT_AS, limits)
        signal.signal(signal.SIGALRM, before)
        taken = memory("VmHWM") - held
        assert taken <= most, f"{taken} bytes for a file of {size}"


def meet(path: Path, read: Callable[[], object], mutate: Mutate, *, address_space: bool = True) -> float:
    """Read the mutations of a file; return which share was refused, all of them by name."""
    content, refused, held = path.read_bytes(), 0, memory("VmRSS")
    for number in range(MUTATIONS):
        changed = mutate(content, np.random.default_rng(number))
        overwrite(path, changed)
        try:
            with within_limits(len(changed), address_space=address_space):
                read()
        except Exception as error:
            if not isinstance(error, DataError) or path.parent.name not in str(error):
                pytest.fail(f"mutation {number}: {type(error).__name__}: {str(error)[:300]}")
            refused += 1
    assert memory("VmRSS") - held <= MEMORY  # of all of them together
    return refused / MUTATIONS


def test_cifar_binary_files(tmp_path):
    rows = np.concatenate([LABELS[:2, None], planes(COLOURS[:2])], axis=1)
    for name in ("train", "test"):
        (tmp_path / f"{name}.bin").write_bytes(np.insert(rows, 0, 7, axis=1).tobytes())
    assert meet(tmp_path / "train.bin", partial(cifar.read_binary, tmp_path, classes=100), flipped) > 0.5


@pytest.mark.parametrize("end", ["", ".gz"])
def test_idx_files(tmp_path, end):
    content = idx_bytes(IMAGES[:2])
    path = tmp_path / f"images{end}"
    path.write_bytes(content)

    if end:
        path.write_bytes(gzip.compress(content))
    assert meet(path, partial(mnist.read_idx, path, 3), packed(flipped) if end else flipped) > 0.5


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_files(tmp_path, save):
    save(tmp_path / "mnist.npz", x_train=IMAGES[:2], y_train=LABELS[:2], x_test=IMAGES[2:3], y_test=LABELS[2:3])
    meet(tmp_path / "mnist.npz", partial(mnist.read_npz, tmp_path), flipped)


def write_set(folder: Path, **options: bool) -> Path:
    return data.write_records(data.arrays(IMAGES[:8], LABELS[:8]), folder, num_files=2, **options)


def test_record_indices(tmp_path):
    path = write_set(tmp_path)
    assert meet(path, lambda: read_index(str(path)), other_values) > 0.5


def test_record_indices_of_files_that_are_there(tmp_path):
    path = write_set(tmp_path)
    assert meet(path, lambda: data.records(path, global_batch_size=2), other_values) > 0.5


@pytest.mark.parametrize("compression", ["", "GZIP"])
def test_record_files(tmp_path, compression):
    """The lengths, by which examples are counted and found."""
    write_set(tmp_path, gzip=bool(compression))
    path = tmp_path / "data-00000-of-00002.tfrecord"

    def read() -> None:
        RecordIndex([str(path)], compression, [4], one_size=True).require_counts()
        assert RecordIndex([str(path)], compression, None).counts[0] < 10

    assert meet(path, read, packed(other_lengths) if compression else other_lengths) > 0.3


@pytest.mark.parametrize("compression", ["", "GZIP"])
def test_record_files_that_are_verified(tmp_path, compression):
    write_set(tmp_path, gzip=bool(compression))
    path = tmp_path / "data-00000-of-00002.tfrecord"
    mutate = packed(other_lengths) if compression else other_lengths
    read = partial(count_by_reading, str(path), compression)
    assert meet(path, read, mutate, address_space=False) > 0.9  # TensorFlow's threads have address space of their own
