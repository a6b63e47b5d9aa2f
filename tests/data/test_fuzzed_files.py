"""Readers of files meet thousands of mutations each: what is wrong is an error by name, in little memory and time.

`MIRRORKIT_MUTATIONS=10000` makes more of them.
"""

from __future__ import annotations

import gzip
import os
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from source_files import IMAGES, LABELS, idx_bytes, record_header

from mirrorkit import data
from mirrorkit.data import mnist
from mirrorkit.data.record_reading import RecordReader
from mirrorkit.errors import DataError

pytestmark = pytest.mark.slow

MUTATIONS = int(os.environ.get("MIRRORKIT_MUTATIONS", "2500"))
SECONDS = 5  # in which each is refused or read
MEMORY = 200 << 20  # and four times the file
NUMBERS = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 2**40, 2**63 - 1, 2**64 - 1)
Mutate = Callable[[bytes, np.random.Generator], bytes]


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


@contextmanager
def within_limits(size: int) -> Iterator[None]:
    """Let what takes more than SECONDS or MEMORY, touched or not, fail."""

    def too_long(*_: object) -> None:
        raise TimeoutError(f"it took {SECONDS} s")

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = signal.signal(signal.SIGALRM, too_long)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    signal.alarm(SECONDS)
    try:
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 4 * size + MEMORY, limits[1]))
        yield
    finally:
        signal.alarm(0)
        resource.setrlimit(resource.RLIMIT_AS, limits)
        signal.signal(signal.SIGALRM, before)


def meet(path: Path, read: Callable[[], object], mutate: Mutate) -> float:
    """Read the mutations of a file; return which share was refused, all of them by name."""
    content, refused = path.read_bytes(), 0
    for number in range(MUTATIONS):
        changed = mutate(content, np.random.default_rng(number))
        overwrite(path, changed)
        try:
            with within_limits(len(changed)):
                read()
        except Exception as error:
            if not isinstance(error, DataError) or path.parent.name not in str(error):
                pytest.fail(f"mutation {number}: {type(error).__name__}: {str(error)[:300]}")
            refused += 1
    return refused / MUTATIONS


def test_idx_files(tmp_path):
    path = tmp_path / "images.gz"
    path.write_bytes(gzip.compress(idx_bytes(IMAGES[:2])))
    assert meet(path, partial(mnist.read_idx, path, 3), packed(flipped)) > 0.5


def write_set(folder: Path, **options: bool) -> Path:
    return data.write_records(data.arrays(IMAGES[:8], LABELS[:8]), folder, num_files=2, **options)


def test_record_indices(tmp_path):
    path = write_set(tmp_path)
    assert meet(path, lambda: data.records(path, global_batch_size=2), flipped) > 0.5


@pytest.mark.parametrize("compression", ["", "GZIP"])
def test_record_files(tmp_path, compression):
    """The lengths, by which examples are counted and found."""
    write_set(tmp_path, gzip=bool(compression))
    path = tmp_path / "data-00000-of-00002.tfrecord"

    def read() -> None:
        print(RecordReader([str(path)], compression, [4], one_size=True).counts)
        assert RecordReader([str(path)], compression, None).counts[0] < 10

    assert meet(path, read, packed(other_lengths) if compression else other_lengths) > 0.3
