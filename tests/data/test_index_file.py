"""The index of a set: each field that cannot be is named, with what was found and the cure."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest

from mirrorkit import data
from mirrorkit.data import index_file
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


OUTSIDE = "the name of a file in the same folder"
CHANGES = [
    (lambda index: index.update(format="1"), "format should be 1, found '1'"),
    (lambda index: index.update(format=2), "has format 2, this version of mirrorkit reads format 1"),
    (lambda index: index.pop("compression"), "compression should be '' or 'GZIP', found None"),
    (lambda index: index.update(compression="EVIL"), "compression should be .* found 'EVIL'"),
    (lambda index: index.update(num_classes=0), "num_classes should be null or a whole number from 1 on, found 0"),
    (lambda index: index.update(num_classes=True), "num_classes should be .* found True"),
    (lambda index: index.pop("features"), "features should be an object of arrays, found None"),
    (lambda index: index.update(features=[1]), "features should be an object of arrays, found list"),
    (lambda index: index.update(features={}), "features should be"),
    (lambda index: index["features"].pop("x"), "features should be x or x/NAME.* found 'y'"),
    (lambda index: index["features"].update({"x/a": index["features"]["x"]}), "features should be x or x/NAME"),
    (lambda index: index["features"].update({"z": index["features"]["x"]}), r"features\['z'\] should be named x, y"),
    (lambda index: index["features"].update({"y": 3}), r"features\['y'\] should be an object, found 3"),
    (of_x(dtype="resource"), r"features\['x'\]\.dtype should be one of uint8, .* found 'resource'"),
    (of_x(dtype=["float32"]), r"features\['x'\]\.dtype should be one of .* found list"),
    (of_x(shape=8), r"features\['x'\]\.shape should be a list of .* found 8"),
    (of_x(shape=[-8]), r"features\['x'\]\.shape"),
    (of_x(shape=[8.0]), r"features\['x'\]\.shape"),
    (of_x(shape=[1] * 33), r"features\['x'\]\.shape"),
    (of_x(shape=[10**12]), r"shards\[0\]\.examples should be at most 0: \d+ bytes hold no more examples"),
    (of_x(shape=[10**60]), r"features\['x'\]\.shape"),
    (lambda index: index.update(shards=[]), "shards should be a list of files, found list"),
    (lambda index: index.update(shards={"0": 1}), "shards should be a list of files, found dict"),
    (lambda index: index.update(shards=[None]), r"shards\[0\] should be an object, found None"),
    (lambda index: index.update(shards=index["shards"][:1] * 2), r"shards\[1\]\.file should be named once"),
    (of_shard(examples=-5), r"shards\[0\]\.examples should be a whole number from 1 on, found -5"),
    (of_shard(examples=10**15), r"shards\[0\]\.examples should be a whole number"),
    (of_shard(examples=10**12), r"shards\[0\]\.examples should be at most \d+: \d+ bytes hold no more"),
    (of_shard(examples="15"), r"shards\[0\]\.examples should be a whole number from 1 on, found '15'"),
    (of_shard(bytes=None), r"shards\[0\]\.bytes should be a whole number from 1 on, found None"),
    *[(of_shard(file=name), rf"shards\[0\]\.file should be {OUTSIDE}") for name in ("/a", "../a", "a/b", "..", "", 7)],
]


@pytest.mark.parametrize(("change", "words"), CHANGES, ids=range(len(CHANGES)))
def test_a_field_that_cannot_be_is_named(tmp_path, change, words):
    write(tmp_path)
    edit(tmp_path, change)
    with pytest.raises(DataError, match=rf"data\.index\.json is damaged: .*{words}.* again, with mk\.data\.write_rec"):
        data.records(tmp_path, global_batch_size=5)


def test_an_array_may_have_as_many_axes_as_numpy_once_allowed(tmp_path):
    write(tmp_path)
    edit(tmp_path, of_x(shape=[1] * 31 + [8]))
    assert data.records(tmp_path, global_batch_size=5).element_spec[0].shape.rank == 33  # and the batch's


@pytest.mark.parametrize("gzip", [False, True])
def test_an_index_that_counts_other_examples_than_its_file_holds_is_refused(tmp_path, gzip):
    write(tmp_path, gzip=gzip)
    for told in (10, 14, 16):
        edit(tmp_path, of_shard(examples=told))
        with pytest.raises(DataError, match=rf"00000-of-00002\.tfrecord should hold {told} examples, found 15: its in"):
            data.records(tmp_path, global_batch_size=5)


@pytest.mark.parametrize("gzip", [False, True])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (of_x(shape=[4]), r"an example holds 32 bytes under 'x'; the index says float32 \[4\], 16 bytes"),
        (of_x(dtype="float16"), r"an example holds 32 bytes under 'x'; the index says float16 \[8\], 16 bytes"),
        (lambda index: index["features"].pop("y"), "an example holds 8 bytes under 'y'; the index says no such array"),
        (
            lambda index: index["features"].update(sample_weight={"dtype": "uint8", "shape": []}),
            r"an example holds nothing under 'sample_weight'; the index says uint8 \[\], 1 bytes",
        ),
    ],
    ids=range(4),
)
def test_an_index_of_other_arrays_than_the_examples_hold_is_refused(tmp_path, gzip, change, words):
    write(tmp_path, gzip=gzip)
    edit(tmp_path, change)
    with pytest.raises(DataError, match=rf"data-00000-of-00002\.tfrecord: {words}"):
        data.records(tmp_path, global_batch_size=5)


@pytest.mark.parametrize("content", [b"", b"[" * 10**6, b'{"a":' * 10**5, b"\xff\xfe\x00", b"[]", b"7", b"9" * 5000])
def test_what_is_no_index_is_named(tmp_path, content):
    path = write(tmp_path)
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"data\.index\.json is damaged.*write_records"):
        data.records(tmp_path, global_batch_size=5)


def test_an_index_that_is_far_too_large_is_not_read(tmp_path, monkeypatch):
    path = write(tmp_path)
    path.write_bytes(b" " * (5 << 20))
    monkeypatch.setattr(index_file.json, "loads", lambda *_: pytest.fail("it was read"))
    with pytest.raises(DataError, match="has 5242880 bytes; an index has at most 4194304"):
        data.records(tmp_path, global_batch_size=5)


@pytest.mark.timeout(60)
def test_a_pipe_in_the_place_of_an_index_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "data.index.json")
    with pytest.raises(DataError, match="is no regular file"):
        data.records(tmp_path / "data.index.json", global_batch_size=2)
