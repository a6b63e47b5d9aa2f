"""Recipes of files at an address give what those of the same files on disk give, and download what they must."""

from __future__ import annotations

import gc
import glob
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from recipe_helpers import collect

from mirrorkit import data
from mirrorkit.data import record_reading, remote_files
from mirrorkit.errors import DataError

pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install pyarrow")
pytest.importorskip("fsspec", reason="fsspec is not installed: pip install fsspec")

from remote_sets import BATCH, KINDS, digest, write_sets

ROOT = "memory://bucket/sets"
ALL = [pytest.param(kind, marks=[pytest.mark.slow] * (kind != "records")) for kind in KINDS]


@pytest.fixture(scope="module")
def on_disk(tmp_path_factory: Any) -> Path:
    folder = tmp_path_factory.mktemp("sets")
    write_sets(folder)
    return folder


@pytest.fixture
def reads(on_disk: Path, bucket: Any, monkeypatch: Any, tmp_path: Path) -> Counter[tuple[str, int, int]]:
    """What the store is asked for: a path, the first byte, and the one after the last; pieces are small."""
    asked: Counter[tuple[str, int, int]] = Counter()
    cat_file = type(bucket).cat_file

    def cat(self: Any, path: str, start: int | None = None, end: int | None = None) -> bytes:
        asked[path, start or 0, end or 0] += 1
        return cat_file(self, path, start, end)

    bucket.put(str(on_disk), "/bucket/sets", recursive=True)
    monkeypatch.setattr(type(bucket), "cat_file", cat)
    for module in (record_reading, remote_files):
        monkeypatch.setattr(module, "PIECE", 2000)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return asked


def total(reads: Counter[tuple[str, int, int]]) -> int:
    return sum(times * (end - first) for (_, first, end), times in reads.items())


def copies() -> list[str]:
    return glob.glob(f"{glob.escape(tempfile.gettempdir())}/mirrorkit-*")


@pytest.mark.parametrize("kind", ALL)
def test_the_same_batches_as_on_disk(kind, on_disk, reads):
    options = {"global_batch_size": BATCH, "shuffle": True, "seed": 3}
    local, remote = KINDS[kind](on_disk, **options), KINDS[kind](ROOT, **options)
    assert digest(remote) == digest(local)
    assert remote.element_spec == local.element_spec
    assert not copies()


def test_copies_are_removed_where_an_epoch_is_broken_off(reads):
    iterator = iter(KINDS["gzip"](ROOT, global_batch_size=BATCH, shuffle=True).dataset())
    next(iterator)
    assert copies(), "of the files that are open"
    del iterator
    gc.collect()
    assert not copies()


def test_records_are_not_downloaded_before_they_are_read(reads, on_disk):
    size = sum(path.stat().st_size for path in (on_disk / "records").iterdir())
    recipe = KINDS["records"](ROOT, global_batch_size=BATCH, shuffle=True)
    before = total(reads)
    assert before < size / 10, "the index, headers and the first example"
    recipe.dataset()
    assert total(reads) == before


def test_workers_that_found_other_versions_of_a_file_have_other_data(reads, bucket):
    options = {"global_batch_size": BATCH, "shuffle": True}
    replaced = {
        "records": "records/data-00002-of-00005.tfrecord",
        "table": "tables/2.parquet",
    }
    for kind, name in replaced.items():
        first, again = (KINDS[kind](ROOT, **options).identity(0, 0) for _ in range(2))
        assert first == again
        bucket.pipe(f"/bucket/sets/{name}", bucket.cat_file(f"/bucket/sets/{name}"))
        assert KINDS[kind](ROOT, **options).identity(0, 0) != first


def test_files_are_verified(reads, bucket):
    for kind in ("records", "gzip"):
        KINDS[kind](ROOT, global_batch_size=BATCH).verify()
    path = "/bucket/sets/records/data-00001-of-00005.tfrecord"
    content = bytearray(bucket.cat_file(path))
    content[500] ^= 1
    bucket.pipe(path, bytes(content))
    with pytest.raises(DataError, match=r"memory://bucket/sets/records/data-00001\S* is cut short"):
        KINDS["records"](ROOT, global_batch_size=BATCH).verify()


def test_only_the_chosen_columns_travel(reads, bucket):
    recipes = (
        KINDS["one column"](ROOT, global_batch_size=BATCH),
        data.parquet(f"{ROOT}/tables", global_batch_size=BATCH),
    )
    sizes = []
    for recipe in recipes:
        reads.clear()
        collect(recipe.dataset())
        sizes.append(total(reads))
    assert 2 * sizes[0] < sizes[1]
