"""The TFRecord files of a set and their index: all or none, and what is damaged or missing is named."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from recipe_helpers import SPLIT, write_foreign

from mirrorkit import data
from mirrorkit.data.index_file import read_index
from mirrorkit.data.record_files import find, flatten, unflatten
from mirrorkit.errors import DataError, FileError


@pytest.mark.parametrize("error", [KeyboardInterrupt(), FileNotFoundError("camera.raw")])
def test_an_interrupted_writer_leaves_no_set_and_the_users_error_stays_what_it_is(tmp_path, error):
    def examples():
        for i in range(20):
            yield np.zeros(3), i
        raise error

    with pytest.raises(type(error)) as caught:
        data.write_records(examples(), tmp_path)
    assert caught.value is error
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(DataError, match="no TFRecord files"):
        data.records(tmp_path, global_batch_size=4)


def test_the_bytes_of_a_set_depend_on_its_examples_alone(tmp_path):
    """Workers that each write it on a disk of their own compare records; the order of protobuf's maps is drawn."""
    names = [f"input-{letter}" for letter in "cabfed"]
    data.write_records([(dict.fromkeys(names, i), 0) for i in range(3)], tmp_path, num_files=1)
    (file,) = tmp_path.glob("*.tfrecord")
    places = [file.read_bytes().index(name.encode()) for name in sorted(names)]
    assert places == sorted(places)


def test_a_writer_killed_before_its_index_leaves_no_set_that_reads_as_whole(tmp_path):
    data.write_records(SPLIT, tmp_path, num_files=2).unlink()
    with pytest.raises(DataError, match="need their index"):
        data.records(tmp_path, global_batch_size=4)
    data.write_records(SPLIT, tmp_path, num_files=3)  # and it does not stand in the way of the next
    assert data.records(tmp_path, global_batch_size=4).num_examples == 53


def test_a_set_is_not_overwritten(tmp_path):
    index = data.write_records(SPLIT, tmp_path, num_files=2)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(DataError, match="exists already"):
        data.write_records(SPLIT[:5], tmp_path, num_files=2)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert index in before


@pytest.mark.parametrize(
    ("examples", "options", "words"),
    [
        ([], {}, "no examples"),
        ([(np.zeros(3), 0), (np.zeros(4), 0)], {}, "example 1 is"),
        ([(np.zeros(3), 0), (np.zeros(3, np.float32), 0)], {}, "example 1 is"),
        ([(np.zeros(3), 0), (np.zeros(3), 5)], {"num_classes": 5}, "example 1 .* label 5"),
        ([(np.zeros(3), -1)], {}, "example 0 .* label -1"),
        ([np.zeros(3)], {}, "should be a tuple"),
        ([("text", 0)], {}, "uint8"),
        ([((np.zeros(3), np.zeros(4)), 0)], {}, "x of example 0 is a tuple"),
        ([(np.zeros(3),), (np.zeros(3), 0)], {}, "example 1 is"),
        ([()], {}, "should be a tuple"),
        (data.arrays((np.zeros(3), np.zeros(3))), {}, "x of example 0 is a tuple"),
        (data.arrays({"a": (np.zeros(3),)}, np.zeros(3)), {}, "x/a of example 0 is a tuple"),
        (data.arrays(np.zeros(3), {"a": {"b": np.zeros(3)}}), {}, "y/a of example 0 is a dict"),
        ([(np.zeros(3), 0)], {"num_files": 0}, "num_files.* found 0"),
    ],
)
def test_bad_examples_are_refused_and_leave_nothing(tmp_path, examples, options, words):
    with pytest.raises(DataError, match=words):
        data.write_records(examples, tmp_path, **options)
    assert list(tmp_path.iterdir()) == []


def test_damage_to_a_set_is_named(tmp_path):
    index = data.write_records(SPLIT, tmp_path, num_files=2)
    shard = tmp_path / "data-00001-of-00002.tfrecord"
    content = shard.read_bytes()
    shard.write_bytes(content[:-1])
    with pytest.raises(DataError, match=rf"{shard.name} .*{len(content)} bytes; found {len(content) - 1}"):
        data.records(tmp_path, global_batch_size=4)
    shard.unlink()
    with pytest.raises(DataError, match=rf"{shard.name} .* missing"):
        data.records(tmp_path, global_batch_size=4)
    index.write_text(index.read_text()[:50])
    with pytest.raises(DataError, match=rf"{index.name} is damaged"):
        data.records(tmp_path, global_batch_size=4)


def test_several_sets_in_a_folder_are_told_apart(tmp_path):
    for name in ("train", "test"):
        write_foreign(tmp_path / f"{name}-00000-of-00001.tfrecord", SPLIT.images[:4], SPLIT.labels[:4])
    with pytest.raises(DataError, match="several sets: test, train"):
        data.records(tmp_path, global_batch_size=2)
    for prefix in ("a", "b"):
        data.write_records(SPLIT, tmp_path, prefix=prefix)
    with pytest.raises(DataError, match=r"several sets: a\.index"):
        data.records(tmp_path, global_batch_size=2)
    assert data.records(tmp_path / "b.index.json", global_batch_size=2).num_examples == 53


def test_a_folder_that_cannot_be_made_or_an_index_that_cannot_be_read_is_a_file_error(tmp_path):
    (tmp_path / "file").write_text("in the way")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(FileError, match=f"cannot write to {folder}"):
            data.write_records(SPLIT, folder)
    (tmp_path / "train.index.json").mkdir()
    with pytest.raises(FileError, match=r"train\.index\.json cannot be read"):
        read_index(str(tmp_path / "train.index.json"))


@pytest.mark.parametrize("size", [3, 300_000], ids=["found when closing", "found when writing"])
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, a disk without space")
def test_a_full_disk_is_a_file_error_and_leaves_nothing(tmp_path, monkeypatch, size):
    make = tempfile.mkdtemp

    def on_a_full_disk(**where: str) -> str:
        folder = make(**where)
        for number in range(2):
            (Path(folder) / str(number)).symlink_to("/dev/full")
        return folder

    monkeypatch.setattr(tempfile, "mkdtemp", on_a_full_disk)
    with pytest.raises(FileError, match="No space left"):
        data.write_records(((np.zeros(size), i) for i in range(4)), tmp_path, num_files=2)
    assert list(tmp_path.iterdir()) == []


def test_the_names_of_the_arrays_in_a_file():
    assert flatten(({"a": 1}, 2, 3)) == {"x/a": 1, "y": 2, "sample_weight": 3}
    for element in ((1,), ({"a": 1},), (1, 2), (1, 2, 3), ({"a": 1, "b": 2}, 3), ({"a": 1}, {"c": 2, "d": 3}, 4)):
        assert unflatten(flatten(element)) == element


@pytest.mark.parametrize("name", ["run[1]", "a*b?", "{a,b}", "back\\slash", "dätä 数据 %s"])
def test_a_folder_may_have_the_characters_of_patterns_in_its_name(tmp_path, name):
    folder, other = tmp_path / name, tmp_path / "other"
    for each, prefix in ((folder, "train"), (other, "elsewhere")):
        index = data.write_records(SPLIT, each, num_files=2, prefix=prefix)
    index = folder / "train.index.json"
    assert find(folder) == find(index) == (str(index), [])
    files = [str(folder / f"train-{i:05d}-of-00002.tfrecord") for i in range(2)]
    assert find(folder / "train-*") == (None, files)
    assert find(folder / "train-0000[1]-*") == (None, files[1:])
    assert find(files[1]) == (None, files[1:])
    assert len(list(data.records(folder, global_batch_size=8).dataset())) > 0


# --- the index of a set: one that is damaged, or not that of the files beside it, is refused by name


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


def test_an_index_that_counts_other_examples_than_its_file_holds_is_refused(tmp_path):
    write(tmp_path)
    for told in (-5, 10, 14, 16, 10**12):
        edit(tmp_path, of_shard(examples=told))
        with pytest.raises(DataError, match=rf"00000-of-00002.* hold \[{told}, 15\] examples.* found 30: 15, 15"):
            data.records(tmp_path, global_batch_size=5)


@pytest.mark.parametrize(
    "change",
    [
        of_x(shape=[4]),
        of_x(dtype="float16"),
        lambda index: index["features"].update(sample_weight={"dtype": "uint8", "shape": []}),
    ],
    ids=range(3),
)
def test_arrays_of_another_size_than_the_index_says_are_an_error_when_they_are_read(tmp_path, change):
    write(tmp_path)
    edit(tmp_path, change)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"reshape|sample_weight"):
        list(data.records(tmp_path, global_batch_size=7).dataset())


@pytest.mark.parametrize("content", [b"", b"[" * 10**6, b"\xff\xfe\x00", b"7"])
def test_what_is_no_index_is_named(tmp_path, content):
    path = write(tmp_path)
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"data\.index\.json is damaged"):
        data.records(tmp_path, global_batch_size=5)
