"""Recipes of files at an address give what those of the same files on disk give, and download what they must."""

from __future__ import annotations

import gc
import logging
import os
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from recipe_helpers import collect

from mirrorkit import data
from mirrorkit.data import record_index, remote_files, staged_ahead, staging
from mirrorkit.data.remote_files import RemoteFile
from mirrorkit.errors import DataError

pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install pyarrow")
pytest.importorskip("fsspec", reason="fsspec is not installed: pip install fsspec")

from remote_sets import BATCH, CONTEXTS, KINDS, digest, write_sets

ROOT = "memory://bucket/sets"
FAST = "records", "table"  # the slow tests read all kinds
MANY = [*FAST, *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("foreign, told", "images"))]
ALL = [kind if kind in (*FAST, "images", "gzip") else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS]


@pytest.fixture(scope="module")
def on_disk(tmp_path_factory: Any) -> Path:
    folder = tmp_path_factory.mktemp("sets")
    write_sets(folder)
    return folder


@pytest.fixture
def reads(on_disk: Path, bucket: Any, monkeypatch: Any) -> Iterator[Counter[tuple[str, int, int]]]:
    """What is downloaded; pieces are small."""
    asked: Counter[tuple[str, int, int]] = Counter()

    def read(file: RemoteFile, first: int, end: int) -> bytes:
        asked[file, first, end] += 1
        return remote_files.read(file, first, end)

    monkeypatch.setattr(staging, "read", read)
    for module in (record_index, staging):
        monkeypatch.setattr(module, "PIECE", 2000)
    bucket.put(str(on_disk), "/bucket/sets", recursive=True)
    yield asked
    finish_what_is_staged()


def finish_what_is_staged() -> None:
    """Wait for what is staged ahead."""
    barrier = threading.Barrier(staged_ahead.THREADS + 1)
    for _ in range(staged_ahead.THREADS):
        staged_ahead.in_background(barrier.wait)
    barrier.wait(60)


def staged() -> dict[str, int]:
    finish_what_is_staged()
    folder = staging.cache().folder
    return {path.name: path.stat().st_size for path in folder.iterdir() if path.name != "bytes"}


@pytest.mark.parametrize("shuffle", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize("kind", ALL)
def test_the_same_batches_as_on_disk(kind, shuffle, on_disk, reads):
    options = {"global_batch_size": BATCH, "shuffle": shuffle, "seed": 3}
    local, remote = KINDS[kind](on_disk, **options), KINDS[kind](ROOT, **options)
    assert digest(remote) == digest(local)
    assert remote.element_spec == local.element_spec
    assert max(reads.values()) == 1, "each piece came once"
    assert sum(staged().values()) == sum(end - first for _, first, end in reads)


@pytest.mark.parametrize("kind", MANY)
def test_a_set_larger_than_the_cache(kind, on_disk, reads, monkeypatch):
    options = {"global_batch_size": BATCH, "shuffle": kind != "records"}
    expected = digest(KINDS[kind](on_disk, **options), None, 0)
    recipe = KINDS[kind](ROOT, **options)
    assert digest(recipe, None, 0) == expected
    needed = sum(staged().values())
    monkeypatch.setenv("MIRRORKIT_CACHE_SIZE", str(needed * 3 // 4))
    assert sum(staged().values()) <= needed * 3 // 4, "the cache was larger before"
    assert digest(recipe, None, 0) == expected
    assert sum(staged().values()) <= needed * 3 // 4
    assert max(reads.values()) > 1, "pieces came and went"


@pytest.mark.parametrize("kind", MANY)
def test_a_worker_of_two_stages_what_it_reads(kind, reads, monkeypatch, tmp_path):
    parts = []
    monkeypatch.setattr(record_index, "PIECE", 900)  # one example or two
    for worker in (1, 2):
        monkeypatch.setenv("MIRRORKIT_CACHE", str(tmp_path / str(worker)))
        recipe = KINDS[kind](ROOT, global_batch_size=BATCH, shuffle=True)
        reads.clear()
        digest(recipe, CONTEXTS[worker], 0)
        finish_what_is_staged()
        parts.append(dict(reads))
    own = [sum(end - first for _, first, end in part) for part in parts]
    both = sum(end - first for _, first, end in {**parts[0], **parts[1]})
    # a stream begins and ends within a piece, and both need the one whose rows both have
    assert own[0] + own[1] <= 1.2 * both
    assert max(own) < 0.65 * both


def test_pieces_are_given_back_where_an_epoch_is_broken_off(reads):
    for kind in FAST:
        iterator = iter(KINDS[kind](ROOT, global_batch_size=BATCH, shuffle=True).dataset())
        next(iterator)
        del iterator
    gc.collect()
    assert staged()
    for name in staged():
        assert staging._removed(str(staging.cache().folder / name)), "somebody still holds it"


def test_nothing_is_staged_of_records_before_they_are_read(reads):
    recipe = KINDS["records"](ROOT, global_batch_size=BATCH, shuffle=True)
    assert len(reads) == 1, "the first example"
    recipe.dataset()
    assert len(reads) == 1


def test_workers_that_found_other_versions_of_a_file_have_other_data(reads, bucket):
    options = {"global_batch_size": BATCH, "shuffle": True}
    replaced = {
        "records": "records/data-00002-of-00005.tfrecord",
        "images": "images/b/001.png",
        "table": "tables/2.parquet",
    }
    for kind, name in replaced.items():
        first, again = (KINDS[kind](ROOT, **options).identity(0, 0) for _ in range(2))
        assert first == again
        bucket.pipe(f"/bucket/sets/{name}", bucket.cat_file(f"/bucket/sets/{name}"))
        assert KINDS[kind](ROOT, **options).identity(0, 0) != first


def test_files_are_verified(reads, bucket):
    for kind in ("records", "gzip", "foreign"):
        KINDS[kind](ROOT, global_batch_size=BATCH).verify()
    path = "/bucket/sets/records/data-00001-of-00005.tfrecord"
    content = bytearray(bucket.cat_file(path))
    content[500] ^= 1
    bucket.pipe(path, bytes(content))
    with pytest.raises(DataError, match=r"memory://bucket/sets/records/data-00001\S* is cut short or damaged after"):
        KINDS["records"](ROOT, global_batch_size=BATCH).verify()


def test_corrupt_images_are_told_from_those_that_do_not_come(reads, bucket, monkeypatch, caplog):
    bucket.pipe("/bucket/sets/images/a/003.png", b"nonsense")
    options = {"global_batch_size": BATCH, "image_size": (16, 16)}
    with pytest.raises(tf.errors.OpError) as raised:
        collect(data.image_folder(f"{ROOT}/images", **options).dataset())
    assert f"{ROOT}/images/a/003.png cannot be read, or decoded" in data.undecodable_image(str(raised.value))
    skipping = data.image_folder(f"{ROOT}/images", **options, skip_corrupt=True)
    assert skipping.skipped == (f"{ROOT}/images/a/003.png",)

    def content_of(address: str) -> bytes:
        raise DataError(f"{address} is not there (any more).")

    monkeypatch.setattr("mirrorkit.data.image_decoding.content_of", content_of)
    assert "is not there" in str(data.undecodable_image(str(raised.value)))

    def fails(file: RemoteFile, first: int, end: int) -> bytes:
        if file.endswith("b/001.png"):
            raise PermissionError("denied")
        return remote_files.read(file, first, end)

    monkeypatch.setattr(staging, "read", fails)
    monkeypatch.setenv("MIRRORKIT_CACHE", os.environ["MIRRORKIT_CACHE"] + "2")
    with pytest.raises((tf.errors.OpError, PermissionError), match="denied"):
        data.image_folder(f"{ROOT}/images", **options, skip_corrupt=True)


def test_a_damaged_table_is_named(reads, bucket):
    path = "/bucket/sets/tables/1.parquet"
    content = bucket.cat_file(path)
    bucket.pipe(path, content[:4] + bytes(100) + content[104:])
    recipe = KINDS["one column"](ROOT, global_batch_size=BATCH)
    with pytest.raises(
        tf.errors.OpError, match=r"DataError: memory://\S+/1\.parquet is damaged, or cannot be read, in"
    ):
        collect(recipe.dataset())
    bucket.pipe(path, content[:-20])
    with pytest.raises(DataError, match=r"memory://\S+/1\.parquet is damaged, or cannot be read: "):
        KINDS["one column"](ROOT, global_batch_size=BATCH)


def test_only_the_chosen_columns_travel(reads, bucket):
    collect(KINDS["one column"](ROOT, global_batch_size=BATCH).dataset())
    finish_what_is_staged()
    one = sum(end - first for _, first, end in reads)
    reads.clear()
    collect(data.parquet(f"{ROOT}/tables", global_batch_size=BATCH).dataset())
    finish_what_is_staged()
    assert 2 * one < sum(end - first for _, first, end in reads)


def test_what_reads_files_through_says_so(reads, caplog):
    with caplog.at_level(logging.WARNING, "mirrorkit"):
        KINDS["foreign"](ROOT, global_batch_size=BATCH)
    assert any("Reading 4 files through to count" in record.message for record in caplog.records)
    assert len(reads) == 1, "nothing of that is staged"
