"""The index of a set: one that is damaged, or not that of the files beside it, is refused by name."""

from __future__ import annotations

import json

import numpy as np
import pytest

from mirrorkit import data
from mirrorkit.errors import DataError

X = np.random.default_rng(0).normal(size=(30, 8)).astype(np.float32)
Y = np.arange(30) % 4


def write(folder, **options):
    return data.write_records(data.arrays(X, Y), folder, num_files=2, **options)


def edit(folder, change):
    (index,) = folder.glob("*.index.json")
    content = json.loads(index.read_text())
    change(content)
    index.write_text(json.dumps(content))


def of_shard(**fields):
    return lambda index: index["shards"][0].update(fields)


def of_x(**fields):
    return lambda index: index["features"]["x"].update(fields)


CHANGES = [
    (lambda index: index.update(format=2), "format 2"),
    (lambda index: index.pop("compression"), "compression"),
    (lambda index: index.update(num_classes="many"), "ValueError: .*many"),
    (lambda index: index.update(features=[1]), ""),
    (of_x(dtype="resource"), "TypeError: .*resource"),
    (lambda index: index.update(shards=[]), "it names no file"),
    (of_shard(file=7), ""),
    (of_shard(bytes="fifteen"), "ValueError: .*fifteen"),
]


@pytest.mark.parametrize(("change", "words"), CHANGES, ids=range(len(CHANGES)))
def test_a_field_that_is_missing_or_no_number_is_damage(tmp_path, change, words):
    write(tmp_path)
    edit(tmp_path, change)
    with pytest.raises(DataError, match=rf"data\.index\.json is damaged: .*{words}"):
        data.records(tmp_path, global_batch_size=5)


def test_no_file_outside_the_folder_of_the_index_is_read(tmp_path):
    folder = tmp_path / "set"
    write(folder)
    first = folder / "data-00000-of-00002.tfrecord"
    first.rename(tmp_path / first.name)
    for name in (f"../{first.name}", str(tmp_path / first.name)):
        edit(folder, of_shard(file=name))
        with pytest.raises(DataError, match=rf"set/{first.name} .*missing"):
            data.records(folder, global_batch_size=5)


@pytest.mark.parametrize("gzip", [False, True])
def test_an_index_that_counts_other_examples_than_its_file_holds_is_refused(tmp_path, gzip):
    write(tmp_path, gzip=gzip)
    for told in (-5, 10, 14, 16, 10**12):
        edit(tmp_path, of_shard(examples=told))
        with pytest.raises(DataError, match=rf"00000-of-00002.* {told} examples, found 15"):
            data.records(tmp_path, global_batch_size=5)


@pytest.mark.parametrize("gzip", [False, True])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (of_x(shape=[4]), r"32 bytes .*'x'.* float32 \[4\], 16 bytes"),
        (of_x(shape=[10**12]), r"'x'.* float32 \[1000000000000\]"),
        (of_x(dtype="float16"), r"32 bytes .*'x'.* float16 \[8\], 16 bytes"),
        (lambda index: index["features"].pop("y"), "8 bytes .*'y'.* no such array"),
        (lambda index: index["features"].update(sample_weight={"dtype": "uint8", "shape": []}), "'sample_weight'"),
    ],
    ids=range(5),
)
def test_an_index_of_other_arrays_than_the_examples_hold_is_refused(tmp_path, gzip, change, words):
    write(tmp_path, gzip=gzip)
    edit(tmp_path, change)
    with pytest.raises(DataError, match=rf"00000-of-00002\.tfrecord: .*{words}"):
        data.records(tmp_path, global_batch_size=5)


@pytest.mark.parametrize("content", [b"", b"[" * 10**6, b"\xff\xfe\x00", b"7"])
def test_what_is_no_index_is_named(tmp_path, content):
    path = write(tmp_path)
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"data\.index\.json is damaged"):
        data.records(tmp_path, global_batch_size=5)
