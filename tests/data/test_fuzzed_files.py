"""Readers of files meet 10,000 mutations each: what is wrong is an error by name, within little memory and time."""

from __future__ import annotations

import gzip
import json
import pickletools
import resource
import signal
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from source_files import COLOURS, IMAGES, LABELS, idx_bytes, old_pickle, planes

from mirrorkit import data
from mirrorkit.data import cifar, idx, npz
from mirrorkit.data.index_file import read_index
from mirrorkit.data.record_index import RecordIndex, count_by_reading
from mirrorkit.errors import DataError

pytestmark = pytest.mark.slow

MUTATIONS = 10_000
SECONDS = 5  # in which each is refused or read
MEMORY = 200 << 20  # and four times the file
NUMBERS = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 2**40, 2**63 - 1, 2**64 - 1)
OPCODES = [code.code.encode("latin-1") for code in pickletools.opcodes]
NAMES = [b"cos\nsystem\n", b"cnumpy\ndtype\n", b"cnumpy\nndarray\n", b"cnumpy.core.multiarray\n_reconstruct\n"]
WORDS = ("", "..", "/etc/passwd", "GZIP", "float32", "object", "x", "x/", "y/a", "\0", "9" * 400)
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


def other_opcodes(content: bytes, rng: np.random.Generator) -> bytes:
    """Change a pickle where its opcodes begin."""
    changed = flipped(content, rng) if rng.integers(2) else content
    for _ in range(int(rng.integers(1, 4))):
        at = int(rng.integers(len(changed) + 1)) if rng.integers(4) else int(rng.integers(min(400, len(changed) + 1)))
        code = [*OPCODES, *NAMES][rng.integers(len(OPCODES) + len(NAMES))]
        number = NUMBERS[rng.integers(len(NUMBERS))].to_bytes(8, "little")[: rng.integers(9)]
        changed = changed[:at] + (code + number) * int(rng.choice([1, 1, 1, 3000])) + changed[at + rng.integers(3) :]
    return changed


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


@contextmanager
def within_limits(size: int) -> Iterator[None]:
    """Let what takes longer or more memory than it may fail."""

    def too_long(*_: object) -> None:
        raise TimeoutError(f"it took {SECONDS} s")

    before = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(SECONDS)
    tracemalloc.reset_peak()
    held = tracemalloc.get_traced_memory()[0]
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        taken = tracemalloc.get_traced_memory()[1] - held
        assert taken <= 4 * size + MEMORY, f"{taken} bytes for a file of {size}"


def meet(
    path: Path,
    read: Callable[[], object],
    mutate: Callable[[bytes, np.random.Generator], bytes],
    mutations: int = MUTATIONS,
) -> float:
    """Read the mutations of a file; return which share was refused, all of them by name."""
    content, refused = path.read_bytes(), 0
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    tracemalloc.start()
    try:
        for number in range(mutations):
            changed = mutate(content, np.random.default_rng(number))
            path.write_bytes(changed)
            try:
                with within_limits(len(changed)):
                    read()
            except Exception as error:
                if not isinstance(error, DataError) or path.parent.name not in str(error):
                    pytest.fail(f"mutation {number}: {type(error).__name__}: {str(error)[:300]}")
                refused += 1
    finally:
        tracemalloc.stop()
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - most) << 10 <= 2 * MEMORY  # and what is not Python's
    return refused / mutations


def test_cifar_pickles(tmp_path):
    old_pickle(tmp_path / "batch", {b"data": planes(COLOURS[:2]), b"labels": LABELS[:2].tolist(), b"names": [b"a.png"]})
    assert meet(tmp_path / "batch", partial(cifar.read_python, tmp_path / "batch"), other_opcodes) > 0.5


def test_cifar_binary_files(tmp_path):
    rows = np.concatenate([LABELS[:2, None], planes(COLOURS[:2])], axis=1)
    (tmp_path / "batch.bin").write_bytes(rows.tobytes())
    assert meet(tmp_path / "batch.bin", partial(cifar.read_binary, tmp_path / "batch.bin"), flipped) > 0.5


@pytest.mark.parametrize("end", ["", ".gz"])
def test_idx_files(tmp_path, end):
    content = idx_bytes(IMAGES[:2])
    path = tmp_path / f"images{end}"
    path.write_bytes(content)

    def packed(content: bytes, rng: np.random.Generator) -> bytes:
        return flipped(content, rng) if rng.integers(2) else gzip.compress(flipped(gzip.decompress(content), rng), 1)

    if end:
        path.write_bytes(gzip.compress(content))
    assert meet(path, partial(idx.read, path), packed if end else flipped) > 0.5


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_files(tmp_path, save):
    save(tmp_path / "mnist.npz", x=IMAGES[:2], y=LABELS[:2])
    meet(tmp_path / "mnist.npz", lambda: npz.read(tmp_path / "mnist.npz", ("x", "y")), flipped)


def write_set(folder: Path, **options: bool) -> Path:
    return data.write_records(data.arrays(IMAGES[:8], LABELS[:8]), folder, num_files=2, **options)


def test_record_indices(tmp_path):
    path = write_set(tmp_path)
    assert meet(path, lambda: read_index(str(path)), other_values) > 0.5


def test_record_indices_of_files_that_are_there(tmp_path):
    path = write_set(tmp_path)
    assert meet(path, lambda: data.records(path, global_batch_size=2), other_values) > 0.5


@pytest.mark.parametrize(
    ("compression", "through", "mutations"),
    [("", False, MUTATIONS), ("", True, 1000), ("GZIP", True, 300)],  # to read through takes TensorFlow 10 to 100 ms
)
def test_record_files(tmp_path, compression, through, mutations):
    write_set(tmp_path, gzip=bool(compression))
    path = tmp_path / "data-00000-of-00002.tfrecord"

    def read() -> None:
        index = RecordIndex([str(path)], compression, [4], one_size=True)
        index.require_counts()
        if through:
            count_by_reading(str(path), compression)

    assert meet(path, read, flipped, mutations) > 0.5 * through
